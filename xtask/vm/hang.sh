# Arrays of $ARRAYS (lines: name level members chunk layout bitmap missing) are made by our command in the guest. Then the
# device-mapper device of slot 1 is suspended: what is asked of it hangs until it is resumed. Writes must succeed without it,
# it must not be taken back while its requests are under way, and afterwards it must. Then it hangs once more, and the server
# must stop all the same.
. /job/serve.sh
fast_sync

# wait_for_end PID: not for ever.
wait_for_end() {
    w_tries=0
    while kill -0 "$1" 2>/dev/null; do
        w_tries=$((w_tries + 1))
        [ $w_tries -lt 900 ] || die "$name: the server does not end"
        sleep 0.1
    done
}

echo "$ARRAYS" >/tmp/arrays
while read -r name level count chunk layout bitmap missing <&4; do
    say "create $name"
    create_and_fill
    device=$(readlink -f "/dev/member/$name-1")
    dmsetup create --noudevsync --noudevrules bad <<TABLE
0 $(blockdev --getsz "$device") linear $device 0
TABLE
    [ -b /dev/mapper/bad ] || { mkdir -p /dev/mapper && ln -sf "$(dmsetup_node)" /dev/mapper/bad; }
    # shellcheck disable=SC2046
    serve --member-timeout 3 $(present "$name" "$count" 1) /dev/mapper/bad

    say "$name: slot 1 hangs"
    dmsetup suspend --noflush --nolockfs --noudevsync bad
    # shellcheck disable=SC2046
    xtask pattern write /dev/nbd0 $(expected "$name") || die "$name: a hanging member fails the write"
    blockdev --flushbufs /dev/nbd0
    expect_content "$name, with a hanging member" /dev/nbd0
    pinstripe detail /run/array.control
    if pinstripe add /run/array.control /dev/mapper/bad; then
        die "$name: a member was taken back that still has requests"
    fi

    say "$name: slot 1 answers again"
    dmsetup resume --noudevsync bad
    tries=0
    until pinstripe add --wait /run/array.control /dev/mapper/bad; do
        tries=$((tries + 1))
        [ $tries -lt 50 ] || die "$name: the member can't be added again"
        sleep 0.2
    done
    pinstripe check /run/array.control || die "$name: check fails"

    say "$name: slot 1 hangs again, and the server is to stop"
    dd if=/dev/nbd0 of=/tmp/block bs=4k count=1 iflag=direct 2>/dev/null
    dmsetup suspend --noflush --nolockfs --noudevsync bad
    dd if=/tmp/block of=/dev/nbd0 bs=4k count=1 oflag=direct conv=notrunc 2>/dev/null || die "$name: the write fails"
    nbd-client -d /dev/nbd0
    pinstripe stop --force /run/array.control || die "$name: stop fails"
    wait_for_end $s_server
    rm -f /run/array.nbd /run/array.control

    say "$name: the others are served, although a request of the server before hangs"
    # shellcheck disable=SC2046
    serve $(present "$name" "$count" 1)
    expect_content "$name, beside a request that hangs" /dev/nbd0
    stop_serving
    dmsetup resume --noudevsync bad
    tries=0
    until dmsetup remove --noudevsync bad 2>/dev/null; do
        tries=$((tries + 1))
        [ $tries -lt 50 ] || die "$name: something still holds the device"
        sleep 0.2
    done

    # shellcheck disable=SC2046
    mdadm --assemble /dev/md9 --quiet --run $(present "$name" "$count" -) || die "$name: mdadm does not assemble it"
    [ "$(attribute md9 degraded)" = 1 ] || die "$name: degraded is $(attribute md9 degraded), expected 1"
    expect_content "$name, degraded" /dev/md9
    stop md9
    out hung "$name"
done 4</tmp/arrays
