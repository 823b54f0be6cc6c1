# The kernel assembles every array of $ARRAYS (lines: name level members chunk layout bitmap missing), repairs it, and
# says how many sectors did not match. Afterwards its own check must find nothing.
fast_sync
echo "$ARRAYS" >/tmp/arrays
while read -r name level count chunk layout bitmap missing <&4; do
    say "repair $name"
    # shellcheck disable=SC2046
    mdadm --assemble /dev/md9 --quiet --run $(present "$name" "$count" -) || die "$name: mdadm does not assemble it"
    wait_idle md9
    echo repair >/sys/block/md9/md/sync_action
    sleep 0.1
    wait_idle md9
    out mismatches "$name $(attribute md9 mismatch_cnt)"
    expect_consistent md9 "$name, repaired"
    stop md9
done 4</tmp/arrays
