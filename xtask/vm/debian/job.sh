# One boot of the Debian guest: runs the script of the stage that the boot before has named (`/root/stage`), which ends
# in a reboot, or with a status for the host.
exec 3>/dev/ttyS1
stage=$(cat /root/stage 2>/dev/null || echo install)
sh "/job/$stage.sh"
status=$?
# 10: the next boot goes on.
if [ $status = 10 ]; then
    sync
    systemctl reboot
else
    # Before anything waits for a device that has no server.
    [ $status = 0 ] || {
        systemctl list-jobs --no-pager
        systemctl status --no-pager --lines=0 'pinstripe@*'
        cat /proc/mdstat
        ls -l /dev/md* /dev/pinstripe
        journalctl --boot --no-pager --output=short-monotonic | grep -v ' kernel: '
    }
    echo "@exit $status" >&3
    timeout 20 sync
    systemctl poweroff
fi
