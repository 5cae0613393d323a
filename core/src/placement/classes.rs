//! Kinds of workers that a bound on the makespan makes equal.

use super::reach::Reach;

/// Kinds that get equally far from everywhere count as one class.
#[derive(Debug)]
pub(super) struct Classes {
    /// Kinds of each class, ascending.
    members: Vec<Vec<usize>>,
    /// Workers of each kind.
    kinds: Vec<usize>,
    /// Workers of each class.
    counts: Vec<usize>,
}

impl Classes {
    /// Leaves `reach`, which is tabulated, with one row for each class.
    pub(super) fn merge(kinds: &[usize], reach: &mut Reach<'_>) -> Self {
        let mut members: Vec<Vec<usize>> = Vec::new();
        for kind in 0..kinds.len() {
            // Kinds are in the order of their speed: equal ones are neighbours.
            match members.last_mut() {
                Some(class) if reach.ends(class[0]) == reach.ends(kind) => class.push(kind),
                _ => members.push(vec![kind]),
            }
        }
        reach.keep(&members.iter().map(|class| class[0]).collect::<Vec<_>>());
        let workers = |class: &Vec<usize>| class.iter().map(|&kind| kinds[kind]).sum();
        let counts = members.iter().map(workers).collect();
        Self { members, kinds: kinds.to_vec(), counts }
    }

    /// Workers of each class.
    pub(super) fn counts(&self) -> &[usize] {
        &self.counts
    }

    /// For each class, the mean over its workers of what each kind has.
    pub(super) fn means(&self, of_kinds: &[f64]) -> Vec<f64> {
        let sum = |class: &Vec<usize>| -> f64 {
            class.iter().map(|&kind| of_kinds[kind] * self.kinds[kind] as f64).sum()
        };
        let sums = self.members.iter().map(sum);
        sums.zip(&self.counts).map(|(sum, &count)| sum / count as f64).collect()
    }

    /// Gives every kind what its class has.
    pub(super) fn spread(&self, of_classes: &[f64], of_kinds: &mut [f64]) {
        for (class, value) in self.members.iter().zip(of_classes) {
            for &kind in class {
                of_kinds[kind] = *value;
            }
        }
    }

    /// Steps of workers of classes as steps of workers of kinds.
    pub(super) fn steps(&self, of_classes: Vec<(usize, usize)>) -> Vec<(usize, usize)> {
        let mut left = self.kinds.clone();
        let step = |(class, end): (usize, usize)| {
            let mut members = self.members[class].iter().copied();
            // No class takes more steps than it has workers.
            let kind = members.find(|&kind| left[kind] > 0)?;
            left[kind] -= 1;
            Some((kind, end))
        };
        of_classes.into_iter().filter_map(step).collect()
    }
}
