#!/bin/bash
# Runs a table on the nodes of a Slurm job: sbatch examples/slurm.sh TABLE
# Not tested on a Slurm cluster. See docs/cluster.md for the storage that all nodes must share.
#SBATCH --job-name=pfl
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --exclusive
#SBATCH --time=12:00:00
#SBATCH --output=pfl-%j.log
set -euo pipefail

table=${1:?which table? sbatch examples/slurm.sh TABLE}
source .venv/bin/activate
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0 RAY_memory_monitor_refresh_ms=0
[ -f ~/.ray/auth_token ] || ray get-auth-token --generate

port=$((20000 + SLURM_JOB_ID % 10000)) # avoids a clash of two jobs on one node
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" \
    ray start --head --port="$port" --num-cpus="$SLURM_CPUS_PER_TASK" --include-dashboard=false --block &
sleep 30
if [ "$SLURM_NNODES" -gt 1 ]; then
    srun --overlap --nodes=$((SLURM_NNODES - 1)) --ntasks=$((SLURM_NNODES - 1)) --exclude="$head" \
        ray start --address="$head:$port" --num-cpus="$SLURM_CPUS_PER_TASK" --block &
    sleep 30
fi

# The batch script runs on the head node. When it ends, Slurm stops the job's Ray processes.
RAY_ADDRESS="$head:$port" dvc exp run -S "tables=[$table]"
