# Our NVMe/TCP target in the guest, with the kernel's host. Sourced by the scripts that need it.

NQN=nqn.2026-01.com.example:vm
HOST=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555
HOST_ID=11111111-2222-3333-4444-555555555555

# start_target DEVICE...: serves the devices on port 4420 and waits until it listens.
start_target() {
    # What the last one has said doesn't count.
    rm -f /tmp/target.log
    pinstripe target --listen 127.0.0.1:4420 --nqn $NQN --shards 2 "$@" >/tmp/target.log 2>&1 &
    t_target=$!
    t_tries=0
    until grep -q ready /tmp/target.log 2>/dev/null; do
        kill -0 $t_target 2>/dev/null || die "target ended: $(cat /tmp/target.log)"
        t_tries=$((t_tries + 1))
        [ $t_tries -lt 300 ] || die "target does not listen"
        sleep 0.1
    done
}

# stop_target: by a signal; it must end with status 0.
stop_target() {
    kill -TERM $t_target
    wait $t_target || die "target ended with status $?: $(cat /tmp/target.log)"
}

# namespace CONTROLLER NUMBER: waits for the block device of a namespace and prints it. The kernel scans namespaces side by
# side, so the number in a device's name isn't that of its namespace.
namespace() {
    n_tries=0
    while :; do
        for n_disk in "/sys/block/$1"n*; do
            [ "$(cat "$n_disk/nsid" 2>/dev/null)" != "$2" ] || break 2
        done
        n_tries=$((n_tries + 1))
        [ $n_tries -lt 300 ] || die "namespace $2 of $1 does not come up: $(dmesg | tail -n 5)"
        sleep 0.1
    done
    echo "/dev/$(basename "$n_disk")"
}

# connect OPTION...: has the kernel connect to $NQN and waits for the first namespace, which is $one.
connect() {
    nvme connect -t tcp -a 127.0.0.1 -s 4420 -n "$NQN" --hostnqn=$HOST --hostid=$HOST_ID "$@" ||
        die "nvme connect $*: $(dmesg | tail -n 5)"
    one=$(namespace nvme0 1)
    wait_for "$one"
}

# disconnect: and waits until the namespaces are gone.
disconnect() {
    nvme disconnect -n "$NQN" || die "nvme disconnect"
    d_tries=0
    while [ -e /dev/nvme0 ]; do
        d_tries=$((d_tries + 1))
        [ $d_tries -lt 300 ] || die "/dev/nvme0 stays"
        sleep 0.1
    done
}

# wait_for DEVICE: until it is there.
wait_for() {
    w_tries=0
    until [ -b "$1" ]; do
        w_tries=$((w_tries + 1))
        [ $w_tries -lt 300 ] || die "$1 does not come up: $(dmesg | tail -n 5)"
        sleep 0.1
    done
}
