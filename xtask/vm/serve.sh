# Our server in the guest, with the kernel's NBD client. Sourced by the scripts that need it.

# create_and_fill: our command makes the array that $name $level $count $chunk $layout describe and fills it as expected.
create_and_fill() {
    # shellcheck disable=SC2046
    pinstripe create --name "$name" --level "$level" --chunk "${chunk}K" --layout "$layout" --bitmap "$bitmap" \
        --assume-clean $(present "$name" "$count" -) || die "$name: create fails"
    # shellcheck disable=SC2046
    serve $(present "$name" "$count" -)
    # shellcheck disable=SC2046
    xtask pattern write /dev/nbd0 $(expected "$name")
    stop_serving
}

# serve DEVICE...: assembles, with members missing too, serves ($SHARDS shards, or one) and connects /dev/nbd0.
serve() {
    pinstripe serve --run --shards "${SHARDS:-1}" --nbd unix:/run/array.nbd --control /run/array.control "$@" &
    s_server=$!
    s_tries=0
    until [ -S /run/array.nbd ]; do
        kill -0 $s_server 2>/dev/null || die "$name: serve ended"
        s_tries=$((s_tries + 1))
        [ $s_tries -lt 1200 ] || die "$name: serve opens no socket"
        sleep 0.1
    done
    nbd-client -unix /run/array.nbd /dev/nbd0 || die "$name: nbd-client does not connect"
}

# stop_serving: disconnects and stops; the server must end with status 0.
stop_serving() {
    blockdev --flushbufs /dev/nbd0
    nbd-client -d /dev/nbd0
    pinstripe stop /run/array.control || die "$name: stop fails"
    wait $s_server || die "$name: serve ended with status $?"
    rm -f /run/array.nbd /run/array.control
}

# data_offset MEMBER: the member's first data sector.
data_offset() {
    mdadm --examine "$1" | awk '/Data Offset/ { print $4 }'
}

# put_under MEMBER START LENGTH TARGET: /dev/mapper/bad is the member, with TARGET instead of the sectors from START.
put_under() {
    p_device=$(readlink -f "$1")
    p_end=$(($2 + $3))
    dmsetup create --noudevsync --noudevrules bad <<TABLE
0 $2 linear $p_device 0
$2 $3 $4
$p_end $(($(blockdev --getsz "$p_device") - p_end)) linear $p_device $p_end
TABLE
    [ -b /dev/mapper/bad ] || { mkdir -p /dev/mapper && ln -sf "$(dmsetup_node)" /dev/mapper/bad; }
}

# dmsetup_node: the device node of `bad`, where no udev makes one.
dmsetup_node() {
    echo "/dev/$(basename "$(ls -d /sys/block/dm-*)")"
}
