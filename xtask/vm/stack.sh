# LVM and LUKS in the guest, which has no udev. Sourced by the scripts that need them.
modprobe dm-crypt || die "no dm-crypt"
mkdir -p /etc/lvm /run/cryptsetup /run/lvm /run/lock/lvm
cat >/etc/lvm/lvm.conf <<'CONF'
activation { udev_sync=0 udev_rules=0 verify_udev_operations=0 monitoring=0 }
devices { obtain_device_list_from_udev=0 external_device_info_source="none" use_devicesfile=0 filter=["a|^/dev/ublk|", "r|.*|"] }
CONF
PASSPHRASE=stripes
for t_name in pvcreate pvs vgcreate lvcreate vgchange; do
    ln -sf /sbin/lvm /sbin/$t_name
done

# unlock: /dev/mapper/secret.
unlock() {
    printf %s "$PASSPHRASE" | cryptsetup open --allow-discards --key-file - /dev/stack/secret secret >/tmp/luks 2>&1 || die "open: $(cat /tmp/luks)"
}
