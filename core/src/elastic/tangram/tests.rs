//! The estimate against the plain one.

use proptest::prelude::*;

use super::*;

/// Algorithm 2's `estimate` as it is written: every end is pushed and popped.
fn plain(plan: &Plan, begun: usize, room: Room, ends: &Ends, limit: f64) -> Option<f64> {
    let Some((first, others)) = plan.waiting[begun..].split_first() else { return Some(0.0) };
    let mut least: Option<f64> = None;
    for choice in first.iter().take(plan.depth) {
        let (mut room, mut ends, mut now) = (room, ends.clone(), 0.0_f64);
        let choices = others.iter().map(|choices| choices[0]);
        let sum = std::iter::once(*choice).chain(choices).try_fold(0.0, |sum, choice| {
            while !room.fits(choice.units) {
                let Reverse((end, units)) = ends.pop()?;
                now = now.max(f64::from_bits(end));
                room.give_back(units);
            }
            room.take(choice.units);
            let end = now + choice.seconds;
            ends.push(Reverse((end.to_bits(), choice.units)));
            let sum = sum + end;
            (sum < least.unwrap_or(limit)).then_some(sum)
        });
        least = sum.or(least);
    }
    least
}

fn actions() -> impl Strategy<Value = Vec<Vec<Choice>>> {
    let units = prop_oneof![
        (1_u16..6).prop_map(Units::cores),
        prop::sample::select(vec![0.25, 0.5]).prop_map(|share| Units::from_f64(share).unwrap()),
    ];
    // Often the same, often not.
    let seconds = prop_oneof![Just(0.0), Just(3.0), Just(0.1), 0.0..50.0_f64];
    let choice = (units, seconds).prop_map(|(units, seconds)| Choice { units, seconds });
    prop::collection::vec(prop::collection::vec(choice, 1..4), 1..60)
}

proptest! {
    /// Bit for bit: what is decided by a comparison is decided alike.
    #[test]
    fn estimates_are_the_plain_ones(
        running in actions(),
        waiting in actions(),
        cores in 1_u64..12,
        depth in 1_usize..4,
        begun in any::<prop::sample::Index>(),
        limit in prop_oneof![Just(f64::INFINITY), 0.0..5000.0_f64],
    ) {
        let mut room = Room::empty(cores);
        let mut ends = Ends::new();
        for choice in running.iter().map(|choices| choices[0]) {
            if room.fits(choice.units) {
                room.take(choice.units);
                ends.push(Reverse((choice.seconds.to_bits(), choice.units)));
            }
        }
        let waiting: Vec<&[Choice]> = waiting.iter().map(Vec::as_slice).collect();
        let plan =
            Plan { room, ends: ends.clone(), waiting: &waiting, least: least(&waiting), depth };
        let begun = begun.index(waiting.len() + 1);
        let bits = |sum: Option<f64>| sum.map(f64::to_bits);
        let got = plan.estimate(begun, room, &ends, limit);
        prop_assert_eq!(bits(got), bits(plain(&plan, begun, room, &ends, limit)));
    }
}
