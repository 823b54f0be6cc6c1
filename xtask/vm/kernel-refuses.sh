# The kernel must refuse to start every array of $ARRAYS (lines: name level members chunk layout bitmap missing): each is
# dirty, and a member is missing.
echo "$ARRAYS" >/tmp/arrays
while read -r name level count chunk layout bitmap missing <&4; do
    say "assemble $name"
    # shellcheck disable=SC2046
    if mdadm --assemble /dev/md9 --run $(present "$name" "$count" "$missing"); then
        die "$name: started, though dirty and degraded: $(cat /proc/mdstat)"
    fi
    dmesg | grep -q 'cannot start dirty degraded array' || die "$name: refused for another reason: $(dmesg | tail -n 3)"
    dmesg -c >/dev/null
    mdadm --quiet --stop /dev/md9 || true
    out refused "$name"
done 4</tmp/arrays
