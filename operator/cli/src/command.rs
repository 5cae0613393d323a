//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Plan rollouts, and simulate them: which worker takes which trajectory, what a GPU
/// budget should buy, how many units each action gets, how long a workload takes.
///
/// Plans are exact: the optimum, not an estimate. No cluster is needed.
#[derive(Debug, Parser)]
#[command(name = "kubectl-rollwright", bin_name = "kubectl rollwright", version)]
#[command(after_help = "\
Examples:
  # Three tests share 12 cores: how many does each get?
  echo '{\"tasks\":[{\"units\":[1,2,4,8],\"durations\":[80,42,23,14]},
                  {\"units\":[1,2,4],\"durations\":[8,4.5,2.6]},
                  {\"units\":[1],\"durations\":[3]}], \"free\":12}' |
    kubectl rollwright plan arrange --input -

  # The same as one JSON object, for a script
  kubectl rollwright plan arrange --input tasks.json --json

  # How long would a workload take?
  kubectl rollwright simulate actions --cluster c.json --workload w.jsonl --policy elastic

  # What each input looks like
  kubectl rollwright plan placement --help

Bad input is refused with exit status 2 and one line that says where and why.")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Find an exact optimum.
    #[command(subcommand)]
    Plan(Plan),
    /// See how a cluster would serve a workload.
    #[command(subcommand)]
    Simulate(Simulate),
    /// Measure again what the papers behind Rollwright measured, in simulation.
    #[command(after_help = "\
Every row is a figure, table or headline of one of the five texts; `ours` comes from the code that
runs in production, on workloads drawn from the distributions that the text states. A row that
falls short stays and says by how much; one that no simulation can tell says why.

Examples:
  kubectl rollwright paper                     # all, in a few minutes
  kubectl rollwright paper tangram             # all of ARL-Tangram
  kubectl rollwright paper tangram-act-cpu --json

Output with --json: {\"experiments\":[{\"name\":..,\"source\":..,\"quantity\":..,\"paper\":9.0,
  \"ours\":11.2,\"better\":\"higher\",\"assumptions\":[..],\"seeds\":5,\"interval\":[10.8,11.6],..}]}")]
    Paper(Paper),
}

/// What to measure again.
#[derive(Debug, Args)]
pub(crate) struct Paper {
    /// A row, or what the names of several begin with up to a dash; all without it.
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Draws the workloads: the same seed gives the same numbers, but for times of this machine.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// How many workloads to draw for each row.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) seeds: u64,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What to plan.
#[derive(Debug, Subcommand)]
pub(crate) enum Plan {
    /// Units for elastic tasks, so that their durations sum to the least.
    #[command(after_help = "\
Input, a JSON object (times in seconds):
  {\"tasks\": [{\"units\": [1,2,4], \"durations\": [8.0,4.5,2.6]}], \"free\": 16}

A task gets one of its units. Instead of `free` (cores), the free aligned chunks of GPUs may be
given, which may be split into halves; units are then 1, 2, 4 or 8:
  {\"tasks\": [{\"units\": [1,2,4], \"durations\": [8.0,4.5,2.6]}], \"chunks\": {\"2\": 1, \"8\": 2}}

Output with --json: {\"total_s\": 2.6, \"units\": [4]}")]
    Arrange(Source),
    /// Trajectories for given workers, so that the slowest ends as early as possible.
    #[command(after_help = "\
Input, a JSON object:
  {\"lengths\": [4000,900,800,100], \"workers\": [{\"token_time_s\": 0.006}, {\"token_time_s\": 0.02}],
   \"interference\": [1.0,1.05,1.1]}

`interference[s-1]` slows down a worker with s trajectories; its last value holds beyond. A group
takes interference * token_time_s * its longest length. At most 16 distinct token times.

Output with --json: {\"makespan_s\": 24.0, \"groups\": [[0],[1,2,3]]}, indices into the lengths.")]
    Placement(Source),
    /// Workers for a GPU budget, and their trajectories.
    #[command(after_help = "\
Input, a JSON object (`degrees`: GPUs of a worker -> seconds for a token):
  {\"lengths\": [4000,900,800,100], \"gpus\": 10, \"max_workers\": 4,
   \"degrees\": {\"1\": 0.020, \"2\": 0.012, \"8\": 0.006}, \"interference\": [1.0,1.05,1.1]}

Output with --json: {\"makespan_s\": 24.0, \"degrees\": [8,1], \"groups\": [[0],[1,2,3]]}")]
    Allocation(Source),
}

/// What to simulate.
#[derive(Debug, Subcommand)]
pub(crate) enum Simulate {
    /// Actions of trajectories on CPU nodes, GPUs and quotas.
    #[command(after_help = "\
Policies:
  elastic         the running queue's default: short actions first, units by a roll-out
  elastic-trajectory  the same for an early end: first whose trajectory will last longest
  tangram         ARL-Tangram's algorithms 1 and 2; `depth` of the cluster is theirs
  fixed:N         first come first served, each action on the largest of its units <= N
  static:N        pods that own N cores from arrival to the end, replicas that stay
  kubernetes:R:L  pods that reserve R cores, whose actions share the node up to L cores

Cluster, a JSON object:
  {\"pools\": [{\"name\":\"cpu\",\"kind\":\"cpu\",\"nodes\":5,\"cores\":256,\"memory_gib\":2400},
             {\"name\":\"rm\",\"kind\":\"gpu\",\"nodes\":5,\"gpus\":8},
             {\"name\":\"search\",\"kind\":\"quota\",\"concurrency\":64,\"per_period\":600,\"period_s\":60}],
   \"services\": [{\"name\":\"judge\",\"pool\":\"rm\",\"degrees\":[4,8],\"restore_s\":1.2}]}

Workload, one JSON object for each trajectory, on a line of its own:
  {\"trajectory\":\"t1\",\"arrival_s\":0,\"memory_gib\":4,\"phases\":[{\"generate_s\":12.1},
   {\"action\":{\"pool\":\"cpu\",\"units\":[1,2,4,8],\"duration_s\":120,\"serial\":0.05}}]}")]
    Actions(Actions),
}

/// What runs where, and how.
#[derive(Debug, Args)]
pub(crate) struct Actions {
    /// The cluster, `-` for standard input.
    #[arg(long, value_name = "FILE")]
    pub(crate) cluster: PathBuf,
    /// The workload, `-` for standard input.
    #[arg(long, value_name = "FILE")]
    pub(crate) workload: PathBuf,
    /// How actions are given units.
    #[arg(long, value_name = "NAME")]
    pub(crate) policy: String,
    /// For policies that draw lots; none of today's does.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Also write every action as a trace that Chrome and Perfetto show.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Where the input is, and how to answer.
#[derive(Debug, Args)]
pub(crate) struct Source {
    /// The input, `-` for standard input.
    #[arg(long, value_name = "FILE")]
    pub(crate) input: PathBuf,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}
