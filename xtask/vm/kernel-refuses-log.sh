# The kernel must refuse every array of $ARRAYS (lines: name level members chunk layout bitmap missing): each is dirty, and
# needs a log that no kernel knows. Nothing on its members may change.
echo "$ARRAYS" >/tmp/arrays
while read -r name level count chunk layout bitmap missing <&4; do
    say "assemble $name"
    # shellcheck disable=SC2046
    before=$(cat $(present "$name" "$count" "$missing") | md5sum)
    for force in "" --force; do
        # shellcheck disable=SC2046
        if mdadm --assemble /dev/md9 --run $force $(present "$name" "$count" "$missing"); then
            die "$name: started, though only its log makes it clean: $(cat /proc/mdstat)"
        fi
        mdadm --quiet --stop /dev/md9 || true
    done
    # shellcheck disable=SC2046
    after=$(cat $(present "$name" "$count" "$missing") | md5sum)
    [ "$before" = "$after" ] || die "$name: refused, but changed"
    out refused "$name"
done 4</tmp/arrays
