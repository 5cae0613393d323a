//! The table.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;

use crate::bandwidth::Card;
use crate::run::{Outcome, median};
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
        let head = "| figure | measured | wished |\n|---|---|---|\n";
        let mut table = Self(format!("{what}\n\n{head}"));
        let sizes = format!(
            "{} services of {:.1} GB under {:.0} GB",
            args.services,
            args.bytes as f64 / 1e9,
            args.cap as f64 / 1e9
        );
        table.line("load", &sizes, &format!("{} actions at a time", args.at_once));
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

    pub(crate) fn services(
        &mut self,
        ours: &Outcome,
        fixed: &Outcome,
        on_demand: &Outcome,
        candidates: usize,
    ) {
        let (act, still, slow) = (mean(&ours.acts), mean(&fixed.acts), mean(&on_demand.acts));
        let counted = |run: &Outcome| format!("{} actions", run.acts.len());
        let measured = format!("{act:.3} s, {}, {} services", counted(ours), ours.served);
        self.line("mean ACT, evict on execution", &measured, "all served");
        let measured = format!(
            "{still:.3} s, {} of {} services, {} actions refused",
            counted(fixed),
            fixed.served,
            fixed.refused
        );
        let ratio = still / act.max(1e-9);
        let wished = wish(ratio >= 1.0, &format!("ours no worse: {ratio:.2}x"));
        self.line("mean ACT, static placement", &measured, &wished);
        let measured = format!("{slow:.3} s, {}", counted(on_demand));
        let ratio = slow / act.max(1e-9);
        let wished = wish(ratio >= 3.0, &format!("ours 3x better: {ratio:.2}x"));
        self.line("mean ACT, loads from the page cache", &measured, &wished);
        let measured = format!("{} of {} answers differ", ours.differed, ours.compared);
        let same = ours.differed == 0 && ours.compared > 0;
        self.line("answers bit for bit as never evicted", &measured, &wish(same, "none"));
        let restores: Duration = ours.times.wakes.iter().sum();
        let all: Duration = ours.acts.iter().sum();
        let share = restores.as_secs_f64() / all.as_secs_f64().max(1e-9) * 100.0;
        let measured = format!(
            "{share:.1}%, {} restores of {:.0} ms",
            ours.times.wakes.len(),
            ms(median(&ours.times.wakes))
        );
        self.line("restores' share of ACT", &measured, "about 25% in the paper");
        if let Some((whole, beside)) = ours.alone {
            let share = beside.as_secs_f64() / whole.as_secs_f64().max(1e-9) * 100.0;
            let measured = format!("{share:.2}% of ACT, proofs and probes included");
            self.line("scheduler overhead, one at a time", &measured, &wish(share < 3.0, "< 3%"));
        }
        let core = ours.core.as_secs_f64() / ours.acts.len().max(1) as f64 * 1e6;
        self.line("of it the core's state machine", &format!("{core:.0} us an action"), "");
        let measured = format!("{candidates} texts, {:.0} ms", mean(&ours.calls) * 1e3);
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
