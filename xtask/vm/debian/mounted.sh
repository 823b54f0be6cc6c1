# After the reboot: everything is there, without a hand.
. /job/lib.sh
. /job/debian.sh
booted
mounted /srv/data /dev/pinstripe/data
mounted /srv/net /dev/pinstripe/net
mounted /srv/md /dev/md0
only_md0
same_files
in_sync data 4 && in_sync net 3 || die "members are missing: $(cat /tmp/detail)"
for array in data net; do
    # The machine went down in order, so nothing had to be resynced.
    ! journalctl --boot --unit pinstripe@$array | grep -i resync || die "$array was not stopped in order"
done
out step rebooted
[ ! -e /job/service.sh ] || . /job/service.sh
