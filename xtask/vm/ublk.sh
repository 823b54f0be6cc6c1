# Our array in the guest as a block device of the kernel's ublk driver. Sourced by the scripts that need it.
members="/dev/member/u-0 /dev/member/u-1 /dev/member/u-2 /dev/member/u-3 /dev/member/u-4"
device=/dev/ublkb0

# create NAME: a RAID5 of all members.
create() {
    # shellcheck disable=SC2086
    pinstripe create --name "$1" --level 5 --chunk 64K --bitmap internal --bitmap-chunk 1M --assume-clean --force $members ||
        die create
}

# start OPTION...: serves the array and waits until it is ready. A server that was killed just now may still hold its members.
start() {
    s_starts=0
    until start_once "$@"; do
        s_starts=$((s_starts + 1))
        [ $s_starts -lt 60 ] || die "serve ended: $(cat /tmp/serve.log 2>&1)"
        sleep 0.5
    done
}

start_once() {
    # The log of the server before says "ready", too.
    rm -f /tmp/serve.log
    # shellcheck disable=SC2086
    pinstripe serve --shards "${SHARDS:-2}" --ublk=0 --nbd unix:/run/u.nbd --control /run/u.control "$@" $members \
        >/tmp/serve.log 2>&1 &
    s_server=$!
    s_tries=0
    until grep -q ready: /tmp/serve.log 2>/dev/null; do
        kill -0 $s_server 2>/dev/null || return 1
        s_tries=$((s_tries + 1))
        [ $s_tries -lt 600 ] || die "serve is not ready: $(cat /tmp/serve.log; dmesg | tail -n 5)"
        sleep 0.1
    done
    [ -b $device ] || die "it is ready, and there is no $device: $(cat /tmp/serve.log)"
}

# stop_server: the server must end with status 0, and the device with it.
stop_server() {
    pinstripe stop /run/u.control || die "stop: $(cat /tmp/serve.log)"
    wait $s_server || die "serve ended with status $?: $(cat /tmp/serve.log)"
    [ ! -e /sys/block/ublkb0 ] || die "$device stays"
    [ -z "$(pinstripe ublk list)" ] || die "a device is left: $(pinstripe ublk list)"
    if grep -q warning /tmp/serve.log; then
        cat /tmp/serve.log
    fi
}

# kill_server: as a crash does.
kill_server() {
    kill -KILL $s_server
    wait $s_server 2>/dev/null || true
}

# limit NAME EXPECTED: what the kernel makes of it.
limit() {
    l_found=$(cat "/sys/block/ublkb0/queue/$1")
    [ "$l_found" = "$2" ] || die "$1 is $l_found, not $2"
}

# flushes NAME: how many flushes a disk has had.
flushes() {
    awk '{ print $16 }' "/sys/class/block/$1/stat"
}

# consistent: nothing differs, once resync is over.
consistent() {
    pinstripe check /run/u.control || die "parity does not match"
}

# kill_under ROUNDS PAUSE PID LOG: kills the server so often, each time after a pause and with a request under way, under the
# writes of a process, which must live; another server takes the device over.
kill_under() {
    k_rounds=$1
    while [ "$k_rounds" -gt 0 ]; do
        sleep "$2"
        kill -0 "$3" || die "the client has ended before the last $k_rounds rounds: $(tail -n 3 "$4")"
        until_under_way
        kill_server
        sleep 0.3
        start
        grep -q 'taken over' /tmp/serve.log || die "it wasn't taken over: $(cat /tmp/serve.log)"
        k_rounds=$((k_rounds - 1))
    done
}

# until_under_way: a database's client waits for itself most of the time.
until_under_way() {
    u_tries=0
    until awk '{ exit $1 + $2 == 0 }' /sys/block/ublkb0/inflight; do
        u_tries=$((u_tries + 1))
        [ $u_tries -lt 1000 ] || die "no request is under way"
    done
}
