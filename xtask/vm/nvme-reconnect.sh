# Our target is killed under the kernel's writes and started again: the host reconnects, and no block is wrong.
. /job/nvme.sh
start_target /dev/member/t-0
connect --reconnect-delay=1 --ctrl-loss-tmo=60 --keep-alive-tmo=5 --hdr-digest --data-digest
fio --name=verify --filename=$one --rw=randwrite --bsrange=4k-128k --size=64m --io_size=96m --direct=1 --ioengine=psync \
    --verify=crc32c --verify_fatal=1 --verify_backlog=64 --rate=8m >/tmp/fio 2>&1 &
f_fio=$!
for round in 1 2 3; do
    sleep 1.5
    say "kill, round $round"
    kill -KILL $t_target
    wait $t_target 2>/dev/null || true
    sleep 1
    start_target /dev/member/t-0
done
wait $f_fio || die "fio: $(tail -n 10 /tmp/fio)"
[ "$(cat /sys/class/nvme/nvme0/state)" = live ] || die "it is $(cat /sys/class/nvme/nvme0/state)"
disconnect
stop_target
out reconnected yes
