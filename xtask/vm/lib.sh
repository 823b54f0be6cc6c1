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
    dmesg | tail -n 30
    exit 1
}

# present NAME COUNT MISSING: the devices of the slots 0 .. COUNT-1 that are not in the list MISSING (`1,2`, `-`), and the
# journal's.
present() {
    [ ! -e "/dev/member/$1-journal" ] || printf '/dev/member/%s-journal ' "$1"
    seats "$@"
}

# seats NAME COUNT MISSING: the same without the journal.
seats() {
    m_i=0
    while [ $m_i -lt "$2" ]; do
        case ",$3," in
        *",$m_i,"*) ;;
        *) printf '/dev/member/%s-%s ' "$1" $m_i ;;
        esac
        m_i=$((m_i + 1))
    done
}

# expected NAME: the runs that the array must hold.
expected() {
    cat "/job/expected/$1"
}

# expect_content NAME DEVICE: the device must hold just what is expected of NAME (its first word).
expect_content() {
    # shellcheck disable=SC2046
    xtask pattern verify "$2" $(($(blockdev --getsize64 "$2") / 4096)) $(expected "${1%%,*}") 2>/tmp/error ||
        die "$1: $(cat /tmp/error)"
}

# sectors_read MEMBER: how many sectors have been read from this disk since the boot.
sectors_read() {
    awk '{ print $3 }' "/sys/class/block/$(disk "$1")/stat"
}

# disk MEMBER: the kernel's name of a member's disk.
disk() {
    basename "$(readlink "/dev/member/$1")"
}

# sectors_written MEMBER: how many sectors have been written to this disk since the boot.
sectors_written() {
    awk '{ print $7 }' "/sys/class/block/$(disk "$1")/stat"
}

# member_attribute MD MEMBER FILE: what /sys/block/MD/md/dev-.../FILE says.
member_attribute() {
    attribute "$1" "dev-$(disk "$2")/$3"
}

# wait_for_slot MD SLOT MEMBER: until this member holds the slot and has everything.
wait_for_slot() {
    w_tries=0
    until [ "$(member_attribute "$1" "$3" slot),$(member_attribute "$1" "$3" state)" = "$2,in_sync" ]; do
        w_tries=$((w_tries + 1))
        [ $w_tries -lt 3000 ] || die "$3 does not get slot $2 of $1: $(cat /proc/mdstat)"
        sleep 0.1
    done
}

# mdadm_create MD: makes the array that $name $level $count $chunk $layout $bitmap describe, waits for its first sync,
# and loses the members of $missing.
mdadm_create() {
    c_options="--level=$level --raid-devices=$count --chunk=$chunk"
    [ "$layout" = - ] || c_options="$c_options --layout=$layout"
    if [ -e "/dev/member/$name-journal" ]; then
        c_options="$c_options --write-journal=/dev/member/$name-journal"
    else
        case "$level,$bitmap" in
        0,*) ;;
        *,internal) c_options="$c_options --bitmap=internal --bitmap-chunk=64K" ;;
        *,none) c_options="$c_options --bitmap=none" ;;
        *) c_options="$c_options --consistency-policy=$bitmap" ;;
        esac
    fi
    # shellcheck disable=SC2046,SC2086
    mdadm --create "/dev/$1" --quiet --run --homehost=vm --name="$name" --metadata=1.2 $c_options \
        $(seats "$name" "$count" -) || die "$name: mdadm does not create it"
    [ "$level" = 0 ] || wait_idle "$1"
    [ "$missing" != - ] || return 0
    for c_slot in $(echo "$missing" | tr , ' '); do
        mdadm --quiet "/dev/$1" --fail "/dev/member/$name-$c_slot"
        mdadm --quiet "/dev/$1" --remove "/dev/member/$name-$c_slot"
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

# wait_bitmap_clear NAME: until the bitmap of this array's first member has no bit set.
wait_bitmap_clear() {
    w_tries=0
    until mdadm --examine-bitmap "/dev/member/$1-0" | grep -q ' 0 dirty'; do
        w_tries=$((w_tries + 1))
        [ $w_tries -lt 60 ] || die "$1: its bitmap does not clear: $(mdadm --examine-bitmap "/dev/member/$1-0")"
        sleep 1
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
