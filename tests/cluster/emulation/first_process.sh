# The first process of a host, given its name, the cluster's folder and its control group, if any. The kernel kills all of
# a host's processes with this one, whoever started them and wherever they went, and takes the host's mounts and links away.
set -e
hostname "$1"
mount -t tmpfs tmpfs /dev/shm
mount --bind "$2/slurm" /etc/slurm
mount --bind "$2/hosts" /etc/hosts
ip link set lo up
[ -z "$3" ] || echo 0 > "$3/cgroup.procs"
echo ready
exec > /dev/null 2>&1
# Orphans become children of the first process; `wait` takes note of their end, so that none stays as a zombie.
while sleep infinity & do wait; done
