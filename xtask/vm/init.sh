#!/bin/busybox sh
# The first process of the guest: brings up disks and network, runs the job that was handed over, reports, powers off.
# Results and the exit status go to the second serial line, where no kernel message can fall between them.
/bin/busybox --install -s /bin 2>/dev/null
export PATH=/sbin:/bin HOME=/
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/member /dev/shm /run/mdadm /tmp /mnt /var/run
mount -t tmpfs tmpfs /run
mkdir -p /run/mdadm
mount -t tmpfs tmpfs /tmp
stty -F /dev/ttyS1 raw 2>/dev/null
exec 3>/dev/ttyS1
echo "@booted" >&3
echo "booted after $(cut -d' ' -f1 /proc/uptime) s"

finish() {
    echo "@exit $1" >&3
    sync
    exec 3>&-
    poweroff -f
}

for module in $(cat /job/modules); do
    modprobe "$module" || finish 90
done
ip link set lo up
if [ -e /sys/class/net/eth0 ]; then
    ip addr add 10.0.2.15/24 dev eth0 && ip link set eth0 up && ip route add default via 10.0.2.2
fi

# A disk is known by its LUN; the job's list says which member each one is.
while read -r lun name; do
    tries=0
    until device=$(ls "/sys/bus/scsi/devices/0:0:0:$lun/block" 2>/dev/null) && [ -b "/dev/$device" ]; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || { echo "disk $name (LUN $lun) did not come up"; finish 91; }
        sleep 0.1
    done
    ln -s "../$device" "/dev/member/$name"
done </job/disks
echo "ready after $(cut -d' ' -f1 /proc/uptime) s"

. /job/environment
# Shortly before the host loses its patience, tell what everybody waits for.
{
    sleep "$WARNING_SECONDS"
    echo w >/proc/sysrq-trigger
    echo t >/proc/sysrq-trigger
    sleep 2
    echo "== not done after $(cut -d' ' -f1 /proc/uptime) s"
    cat /proc/mdstat
    dmesg | tail -n 1500
} &

# A job may have its root on a disk: then this script goes on there, as the first process still.
root=$(cat /job/root 2>/dev/null || true)
if [ -n "$root" ]; then
    mount -t ext4 "$root" /mnt || finish 92
    for folder in dev proc sys run tmp; do
        mount --move /$folder /mnt/$folder
    done
    cp -a /job /mnt/ && rm /mnt/job/root || finish 93
    exec switch_root /mnt /bin/busybox sh -c '. /job/environment; sh -eu /job/run.sh </dev/null; echo "@exit $?" >&3; sync; poweroff -f'
fi

sh -eu /job/run.sh </dev/null
finish $?
