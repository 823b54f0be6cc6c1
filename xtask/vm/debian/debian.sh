# What the stages in the Debian guest share. Sourced after lib.sh.

# by_id DISK...: the names of disks that stay.
by_id() {
    for b_disk; do
        printf '/dev/disk/by-id/scsi-0QEMU_QEMU_HARDDISK_%s ' "$b_disk"
    done
}

# until_true SECONDS WHAT COMMAND...: waits for a condition; an emulated machine is slow.
until_true() {
    u_end=$(($(uptime_seconds) + $1))
    u_what=$2
    shift 2
    until "$@" >/tmp/until 2>&1; do
        [ "$(uptime_seconds)" -lt $u_end ] || die "$u_what: $(tail -n 5 /tmp/until)"
        sleep 0.3
    done
}

uptime_seconds() {
    cut -d. -f1 /proc/uptime
}

# next_boot STAGE: the machine is booted anew, and goes on there.
next_boot() {
    echo "$1" >/root/stage
    exit 10
}

# booted: systemd has done everything that the boot consists of, and nothing has failed.
booted() {
    b_state=$(systemctl is-system-running --wait) ||
        die "the system is $b_state: $(systemctl list-units --failed --plain --no-legend; systemctl list-jobs)"
    say "booted: $b_state"
}

# only_md0: mdadm has its own array whole, and none of our members.
only_md0() {
    grep -q '^md0 : active raid1' /proc/mdstat || die "mdadm's own array is not assembled: $(cat /proc/mdstat)"
    [ "$(grep -c '^md' /proc/mdstat)" = 1 ] || die "mdadm has taken our members: $(cat /proc/mdstat)"
    grep -q '\[UU\]' /proc/mdstat || die "mdadm's own array is not whole: $(cat /proc/mdstat)"
}

# mounted PLACE SOURCE: what is mounted there is that, and can be written.
mounted() {
    m_found=$(findmnt --noheadings --output SOURCE "$1") || die "$1 is not mounted: $(systemctl status --no-pager "$1" 2>&1)"
    [ "$m_found" = "$(readlink -f "$2")" ] || die "$1 has $m_found, not $2"
    touch "$1/touched" || die "$1 can't be written"
}

# same_files: everything that was copied to the arrays is there.
same_files() {
    for s_place in data net; do
        (cd /srv/$s_place && sha256sum --quiet --check /root/sums) >/tmp/differences 2>&1 ||
            die "/srv/$s_place differs: $(head -n 3 /tmp/differences)"
    done
}

# main_pid UNIT: the process of a unit, 0 if there is none.
main_pid() {
    systemctl show --property MainPID --value "$1"
}

# is_another UNIT PID: the unit runs, in another process than this one.
is_another() {
    systemctl is-active "$1" && [ "$(main_pid "$1")" != "$2" ] && [ "$(main_pid "$1")" != 0 ]
}

# is_inactive UNIT: systemd has seen its end.
is_inactive() {
    i_state=$(systemctl is-active "$1") || true
    echo "$i_state"
    [ "$i_state" = inactive ]
}

# in_sync ARRAY COUNT: so many members are.
in_sync() {
    pinstripe detail "$1" >/tmp/detail 2>&1
    [ "$(grep -cE ' in-sync[ ,]' /tmp/detail)" = "$2" ] || { cat /tmp/detail; return 1; }
}

# missed: the server knows that a disk is gone.
missed() {
    pinstripe detail data | grep 'its disk is gone'
}

# degraded: the daemon has raised the alert.
degraded() {
    pinstripe status | grep -i degraded
}

# start_load: fio writes and verifies what it wrote on /srv/data, again and again, until end_load.
start_load() {
    rm -f /tmp/enough
    load &
    f_load=$!
    progress "at the start"
}

load() {
    while [ ! -e /tmp/enough ]; do
        fio --name=load --filename=/srv/data/load --rw=randwrite --bsrange=4k-128k --size=32m --io_size=24m --direct=1 \
            --ioengine=libaio --iodepth=16 --verify=crc32c --verify_fatal=1 --verify_backlog=128 --verify_state_save=0 \
            >/tmp/fio 2>&1 || return 1
    done
}

# end_load: no request has failed, and every block was right.
end_load() {
    : >/tmp/enough
    wait $f_load || die "the load failed: $(tail -n 10 /tmp/fio)"
    no_errors
}

# requests: how many requests the array's device has done.
requests() {
    awk '{ print $1 + $5 }' "/sys/block/$(basename "$(readlink -f /dev/pinstripe/data)")/stat"
}

# progress WHEN: the load goes on.
progress() {
    p_before=$(requests)
    until_true 120 "$1: the load stands still" has_done $((p_before + 100))
    kill -0 $f_load 2>/dev/null || die "$1: the load has ended: $(tail -n 10 /tmp/fio)"
}

has_done() {
    [ "$(requests)" -ge "$1" ]
}

# no_errors: the kernel saw none on our devices, and their file systems are as they were.
no_errors() {
    if dmesg | grep -E 'ublkb.*error|error.*ublkb|EXT4-fs error|XFS.*(error|shut)' >/tmp/errors; then
        die "I/O errors: $(head -n 3 /tmp/errors)"
    fi
    mounted /srv/data /dev/pinstripe/data
    mounted /srv/net /dev/pinstripe/net
    # systemd tries to unmount what requires a server that it starts again; a mount that is in use is failed then.
    n_results=$(systemctl show --property Result --value srv-data.mount srv-net.mount)
    [ -z "$(echo "$n_results" | grep -vx -e success -e '')" ] || die "systemd wanted to unmount what is in use: $n_results"
}

# files: the names of all files of the root file system, but for those that come by themselves.
files() {
    find / -xdev \( -path /var/log -o -path /var/cache -o -path /var/lib/apt -o -path /var/lib/systemd/timers -o -path /root \
        -o -path /tmp -o -path /var/tmp -o -path '/var/lib/dpkg/*-old' \) -prune -o -print | sort
}

# serves_t0: the target has its disk as namespace 1, and the number of the one that is missing is free.
serves_t0() {
    pinstripe discover --namespaces 127.0.0.1:4420 >/tmp/discovered || die "discover: $(cat /tmp/discovered)"
    grep -q 'nsid=1' /tmp/discovered || die "namespace 1 is not there: $(cat /tmp/discovered)"
    ! grep -q 'nsid=2' /tmp/discovered || die "namespace 2 is there: $(cat /tmp/discovered)"
}
