# Linux's own disaggregated array: md over the kernel's nvme-tcp and our target. What crosses the link for each byte that is written
# in parts of stripes.
. /job/nvme.sh
fast_sync
start_target /dev/member/t-0 /dev/member/t-1 /dev/member/t-2 /dev/member/t-3

# carried: bytes on the link so far, both directions together.
carried() {
    awk '$1 == "lo:" { print $2 }' /proc/net/dev
}

# partial OPTION...: fio writes, or verifies, parts of stripes.
partial() {
    fio --name=partial --filename=/dev/md9 --rw=randwrite --bs=128k --io_size=48m --direct=1 --ioengine=psync --numjobs=1 \
        --verify=crc32c "$@" >/tmp/fio 2>&1 || die "fio $*: $(tail -n 5 /tmp/fio)"
}

for level in 5 6; do
    connect
    members=""
    for number in 1 2 3 4; do
        members="$members $(namespace nvme0 $number)"
    done
    # shellcheck disable=SC2086
    mdadm --create /dev/md9 --run --quiet --level=$level --chunk=512 --raid-devices=4 --bitmap=internal $members ||
        die "mdadm --create: $(dmesg | tail -n 5)"
    wait_idle md9
    before=$(carried)
    partial --do_verify=0
    after=$(carried)
    out "raid$level" $(((after - before) / (48 * 10486)))
    partial --verify_only=1 --verify_fatal=1
    expect_consistent md9 "level $level"
    stop md9
    # shellcheck disable=SC2086
    mdadm --zero-superblock $members
    disconnect
done
stop_target
