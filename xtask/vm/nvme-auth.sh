# The kernel's host proves who it is to our target, and has it prove who it is: with every hash and some groups; without the key, with
# another one and under another name it gets nothing.
. /job/nvme.sh
modprobe nvme-tcp

# write_keys FILE LINE...: a file of secrets, as our command wants it.
write_keys() {
    k_file=$1
    shift
    : >$k_file
    chmod 600 $k_file
    for k_line in "$@"; do
        echo "$k_line" >>$k_file
    done
}

# refused OPTION...: the kernel must not get a controller.
refused() {
    nvme connect -t tcp -a 127.0.0.1 -s 4420 -n $NQN --hostnqn="${as:-$HOST}" --hostid=$HOST_ID "$@" >/tmp/refused 2>&1 &&
        die "$what: it is let in"
    [ -z "$(ls -d /sys/class/nvme/nvme* 2>/dev/null)" ] || die "$what: a controller is left"
}

# rejects WORDS OPTION...: our command ends with an error that has these words.
rejects() {
    r_words=$1
    shift
    pinstripe "$@" >/tmp/rejected 2>&1 && die "pinstripe $* works"
    grep -q "$r_words" /tmp/rejected || die "pinstripe $*: $(cat /tmp/rejected)"
}

say "addresses and files"
rejects "dhchap-hosts" target --listen 0.0.0.0:4420 --nqn $NQN /dev/member/t-0
secret=$(nvme gen-dhchap-key --nqn=$HOST)
write_keys /tmp/hosts "$HOST $secret"
chmod 640 /tmp/hosts
rejects "can be read by other users" target --listen 0.0.0.0:4420 --nqn $NQN --dhchap-hosts /tmp/hosts /dev/member/t-0
write_keys /tmp/hosts "$HOST ${secret%???}::"
rejects "line 1" target --listen 0.0.0.0:4420 --nqn $NQN --dhchap-hosts /tmp/hosts /dev/member/t-0

# try HASH-OF-SECRET NEGOTIATED-HASH GROUP: one way and both ways, with data.
try() {
    secret=$(nvme gen-dhchap-key --hmac="$1" --nqn=$HOST) || die "gen-dhchap-key $1"
    controller=$(nvme gen-dhchap-key --hmac="$1" --nqn=$NQN) || die "gen-dhchap-key $1"
    what="secret of kind $1, $2, $3"
    say "$what"
    write_keys /tmp/hosts "$HOST $secret $controller hash=$2 group=$3"
    start_target --dhchap-hosts /tmp/hosts /dev/member/t-0
    for other in "" "--dhchap-ctrl-secret=$controller"; do
        # shellcheck disable=SC2086
        connect --dhchap-secret="$secret" $other --nr-io-queues=2
        # shellcheck disable=SC2046
        xtask pattern write "$one" $(expected t)
        blockdev --flushbufs "$one"
        expect_content t "$one"
        disconnect
    done
}

for i in "0 sha256 null" "1 sha256 ffdhe2048" "2 sha384 ffdhe3072" "3 sha512 ffdhe8192" "1 sha512 null"; do
    # shellcheck disable=SC2086
    try $i
    [ "$i" = "1 sha512 null" ] || stop_target
done
out accepted yes

say "refused"
what="no key" && refused
what="another key" && refused --dhchap-secret="$(nvme gen-dhchap-key --nqn=$HOST)"
what="a server with another key" &&
    refused --dhchap-secret="$secret" --dhchap-ctrl-secret="$(nvme gen-dhchap-key --nqn=$NQN)"
as=nqn.2026-01.com.example:stranger
what="another name" && refused --dhchap-secret="$secret"
as=$HOST
nvme discover -t tcp -a 127.0.0.1 -s 4420 --hostnqn=$HOST --hostid=$HOST_ID >/tmp/discovered 2>&1 && die "discovery needs no key"
# With the key, but not by this nvme-cli, which keeps the key to itself.
echo "transport=tcp,traddr=127.0.0.1,trsvcid=4420,nqn=nqn.2014-08.org.nvmexpress.discovery,hostnqn=$HOST,\
hostid=$HOST_ID,dhchap_secret=$secret,dhchap_ctrl_secret=$controller" | tr -d '\n' >/dev/nvme-fabrics || die "discovery with the key"
[ "$(cat /sys/class/nvme/nvme0/state)" = live ] || die "the discovery controller isn't live"
echo 1 >/sys/class/nvme/nvme0/delete_controller
connect --dhchap-secret="$secret" --dhchap-ctrl-secret="$controller"
fio --name=verify --filename="$one" --rw=randwrite --bsrange=512-256k --size=16m --io_size=8m --direct=1 \
    --ioengine=psync --numjobs=1 --verify=crc32c --verify_fatal=1 >/tmp/fio 2>&1 || die "fio: $(tail -n 5 /tmp/fio)"

say "the kernel authenticates again while it is connected"
echo "$secret" >/sys/class/nvme/nvme0/dhchap_secret || die "no new secret can be set"
sleep 2
dmesg | grep -q re-authenticating || die "the kernel doesn't authenticate again"
[ "$(cat /sys/class/nvme/nvme0/state)" = live ] || die "the same secret again: $(cat /sys/class/nvme/nvme0/state)"
dd if="$one" of=/dev/null bs=4096 count=16 iflag=direct 2>/dev/null || die "after it was proved again, it can't be read"
disconnect
stop_target
out refused yes
