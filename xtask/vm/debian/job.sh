# One boot of the Debian guest: runs the script of the stage that the boot before has named (`/root/stage`), which ends
# in a reboot, or with a status for the host.
exec 3>/dev/ttyS1
stage=$(cat /root/stage 2>/dev/null || echo install)
sh "/job/$stage.sh"
status=$?
sync
# 10: the next boot goes on.
if [ $status = 10 ]; then
    systemctl reboot
else
    [ $status = 0 ] || {
        cat /proc/mdstat
        ls -l /dev/md* /dev/pinstripe
        journalctl --boot --no-pager --output=short-monotonic | grep -v ' kernel: '
    }
    echo "@exit $status" >&3
    systemctl poweroff
fi
