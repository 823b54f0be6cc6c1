# What the guest scripts share. Sourced by each; they run under `set -eu`.
set -eu

# out NAME VALUE...: one result for the host.
out() {
    echo "@out $*" >&3
}

# say TEXT...: progress in the console log.
say() {
    echo "== $(cut -d' ' -f1 /proc/uptime) $*"
}

# die TEXT...: the job fails with this sentence, which the host repeats.
die() {
    echo "@why $*" >&3
    echo "FAILED: $*"
    exit 1
}

# members NAME COUNT: the devices /dev/member/NAME-0 .. NAME-(COUNT-1).
members() {
    m_i=0
    while [ $m_i -lt "$2" ]; do
        printf '/dev/member/%s-%s ' "$1" $m_i
        m_i=$((m_i + 1))
    done
}

# attribute MD FILE: what /sys/block/MD/md/FILE says.
attribute() {
    cat "/sys/block/$1/md/$2"
}

# wait_idle MD: until no resync, recovery, check or reshape runs.
wait_idle() {
    w_tries=0
    while [ "$(attribute "$1" sync_action)" != idle ]; do
        w_tries=$((w_tries + 1))
        [ $w_tries -lt 3000 ] || die "$1 does not become idle: $(cat /proc/mdstat)"
        sleep 0.1
    done
}

# wait_clean MD: until the kernel has marked the idle array clean on its members.
wait_clean() {
    w_tries=0
    until [ "$(attribute "$1" array_state)" = clean ]; do
        w_tries=$((w_tries + 1))
        [ $w_tries -lt 200 ] || die "$1 stays $(attribute "$1" array_state)"
        sleep 0.1
    done
}

# check MD: runs the kernel's scrub to its end and prints mismatch_cnt.
check() {
    wait_idle "$1"
    echo check >"/sys/block/$1/md/sync_action"
    sleep 0.1
    wait_idle "$1"
    attribute "$1" mismatch_cnt
}

# expect_consistent MD WHAT: the scrub must find nothing.
expect_consistent() {
    e_found=$(check "$1")
    [ "$e_found" = 0 ] || die "$2: mismatch_cnt $e_found"
}

# fast_sync: no speed limit for resync and recovery.
fast_sync() {
    echo 2000000 >/proc/sys/dev/raid/speed_limit_min
    echo 2000000 >/proc/sys/dev/raid/speed_limit_max
}

# stop MD: flushes and stops the array.
stop() {
    blockdev --flushbufs "/dev/$1"
    mdadm --quiet --stop "/dev/$1"
}
