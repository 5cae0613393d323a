//! The table.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;

use crate::bandwidth::Card;
use crate::run::{Outcome, Placement, median};
use crate::settings::Args;
use crate::timed::Times;

/// Lines of Markdown.
#[derive(Debug)]
pub(crate) struct Table(String);

/// What was wished, and whether it was reached.
fn wish(reached: bool, wished: &str) -> String {
    format!("{wished}: {}", if reached { "reached" } else { "**MISSED**" })
}

fn mean(of: &[Duration]) -> f64 {
    of.iter().sum::<Duration>().as_secs_f64() / of.len().max(1) as f64
}

fn sum(of: &[Duration]) -> f64 {
    of.iter().sum::<Duration>().as_secs_f64()
}

/// The part of a run in which an action executed, in percent: one at a time does.
fn executing(run: &Outcome) -> f64 {
    sum(&run.calls) / run.took.as_secs_f64().max(1e-9) * 100.0
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

impl Table {
    pub(crate) fn new(args: &Args, card: &Card) -> Self {
        let name = &card.name;
        let what = if args.fake {
            "**A FAKE of a GPU**: times of transfers and of actions' work are modelled, tiny models on \
             the processor stand for large ones. No figure is a figure of a real device."
                .to_owned()
        } else if name.contains("FAKE") {
            format!("**A FAKE of the driver**: {name}. No figure is a figure of a real device.")
        } else {
            format!("On a real GPU: {name}.")
        };
        let compared = "Three placements get the same actions, as many at a time, on one GPU that begins full: \
             *evict on execution* serves all services from pinned memory, the *page cache* all by \
             reading them when they are asked for (the same pool in both), *static placement* only \
             those that fit and never leave, which are asked for all actions. To serve all, it \
             would need more GPUs.";
        let head = "| figure | measured | wished |\n|---|---|---|\n";
        let mut table = Self(format!("{what}\n\n{compared}\n\n{head}"));
        let sizes = format!(
            "{} services of {:.1} GB under {:.0} GB, {} actions a run",
            args.services,
            args.bytes as f64 / 1e9,
            args.cap as f64 / 1e9,
            args.actions,
        );
        table.line("load", &sizes, "");
        let measured = format!("{:.2} GB/s", card.pinned / 1e9);
        table.line("pinned memory to the GPU", &measured, "");
        table
    }

    fn line(&mut self, figure: &str, measured: &str, wished: &str) {
        // Writing to a string does not fail.
        let _infallible = writeln!(self.0, "| {figure} | {measured} | {wished} |");
    }

    pub(crate) fn restores(&mut self, times: &Times, bytes: u64, pinned: f64) {
        let took = median(&times.wakes);
        let rate = bytes as f64 / took.as_secs_f64().max(1e-9);
        let share = rate / pinned.max(1.0);
        let measured = format!(
            "{:.0} ms, {:.2} GB/s, {:.1}% of pinned bandwidth",
            ms(took),
            rate / 1e9,
            share * 100.0
        );
        let figure =
            format!("restore of {:.0} GB, median of {}", bytes as f64 / 1e9, times.wakes.len());
        self.line(&figure, &measured, &wish(share >= 0.9, ">= 90%"));
        let (middle, worst) =
            (median(&times.evicts), times.evicts.iter().max().copied().unwrap_or_default());
        let measured = format!("{:.1} ms, at most {:.1} ms", ms(middle), ms(worst));
        self.line("evict of it", &measured, &wish(worst < Duration::from_millis(50), "< 50 ms"));
    }

    /// What each placement did with the load.
    pub(crate) fn services(&mut self, ours: &Placement, fixed: &Placement, slow: &Placement) {
        let measured = format!("{} services", ours.served);
        self.line("evict on execution serves", &measured, "all");
        let measured = format!("{} services; {} actions refused", fixed.served, fixed.refused);
        self.line("static placement serves", &measured, "");
        for (run, (fixed, slow)) in ours.runs.iter().zip(fixed.runs.iter().zip(&slow.runs)) {
            let (act, figure) = (mean(&run.acts), format!("mean ACT, {} at a time", run.at_once));
            let restores: Duration = run.times.wakes.iter().sum();
            let measured = format!(
                "{act:.3} s; executes {:.0}% of the time; {} restores of {:.0} ms, {:.0}% of execution, {:.0}% of ACT \
                 (about 25% in the paper)",
                executing(run),
                run.times.wakes.len(),
                ms(median(&run.times.wakes)),
                restores.as_secs_f64() / sum(&run.calls).max(1e-9) * 100.0,
                restores.as_secs_f64() / sum(&run.acts).max(1e-9) * 100.0,
            );
            self.line(&format!("{figure}: evict on execution"), &measured, "");
            let still = mean(&fixed.acts);
            let measured = format!("{still:.3} s; executes {:.0}% of the time", executing(fixed));
            let ratio = still / act.max(1e-9);
            let wished = wish(ratio >= 0.995, &format!("ours no worse: {ratio:.2}x"));
            self.line(&format!("{figure}: static placement"), &measured, &wished);
            let loads = mean(&slow.acts);
            let measured = format!(
                "{loads:.3} s; executes {:.0}% of the time; {} restores of {:.0} ms",
                executing(slow),
                slow.times.wakes.len(),
                ms(median(&slow.times.wakes)),
            );
            let ratio = loads / act.max(1e-9);
            let wished = wish(ratio >= 3.0, &format!("ours 3x better: {ratio:.2}x"));
            self.line(&format!("{figure}: page cache"), &measured, &wished);
        }
        let measured = format!("{} of {} answers differ", ours.differed, ours.compared);
        let same = ours.differed == 0 && ours.compared > 0;
        self.line("answers bit for bit as never evicted", &measured, &wish(same, "none"));
    }

    /// What scheduling takes: seen where nothing else is under way.
    pub(crate) fn overhead(&mut self, ours: &Placement, candidates: usize) {
        let Some(run) = ours.runs.iter().find(|run| run.at_once == 1) else { return };
        let whole = sum(&run.acts);
        let share = |part: f64| part / whole.max(1e-9) * 100.0;
        let moves = sum(&run.times.wakes) + sum(&run.times.evicts);
        let overhead = share(whole - sum(&run.calls) - moves);
        let measured = format!("{overhead:.2}% of ACT");
        let wished = wish(overhead < 3.0, "< 3%");
        self.line("scheduler overhead, one at a time: neither call nor move", &measured, &wished);
        let part = |of: &[Duration]| {
            format!("{:.2}% of ACT, {} of {:.2} ms", share(sum(of)), of.len(), mean(of) * 1e3)
        };
        self.line("of it questions whether an engine sleeps", &part(&run.times.questions), "");
        let beside = "of it looks for an engine's processes, beside these";
        self.line(beside, &part(&run.times.looks), "");
        self.line("of it requests that show that it serves", &part(&run.times.probes), "");
        let known = sum(&run.times.questions).max(sum(&run.times.looks)) + sum(&run.times.probes);
        let rest = share(whole - sum(&run.calls) - moves - known - run.core.as_secs_f64());
        let measured = format!("{rest:.2}% of ACT");
        self.line("of it messages, waking of threads, the device's account", &measured, "");
        let core = run.core.as_secs_f64() / run.acts.len().max(1) as f64 * 1e6;
        self.line("of it the core's state machine", &format!("{core:.0} us an action"), "");
        let measured = format!("{candidates} texts, {:.0} ms", mean(&run.calls) * 1e3);
        self.line("an action's own work", &measured, "");
    }

    /// Prints it, and writes it where it was asked for.
    pub(crate) fn write(self, out: Option<&Path>) -> anyhow::Result<()> {
        std::io::stdout().write_all(self.0.as_bytes())?;
        match out {
            Some(path) => std::fs::write(path, self.0)
                .with_context(|| format!("cannot write {}", path.display())),
            None => Ok(()),
        }
    }
}
