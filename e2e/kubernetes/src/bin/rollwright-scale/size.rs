//! How much there is, and who is where: pure.

/// GPUs of each node that has some.
pub(crate) const GPUS_PER_NODE: u32 = 8;
/// Gateways that a node without GPUs takes: below the 110 pods of a usual node.
const GATEWAYS_PER_NODE: u32 = 100;
/// Jobs of one namespace.
const JOBS_PER_NAMESPACE: u32 = 50;

/// A class of GPUs, in a pool of its own. All workers there have one degree, so that the
/// scheduler, which spreads pods, finds room for plain Deployments too.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Class {
    /// Name of the class and of its pool.
    pub(crate) name: &'static str,
    /// GPUs of each worker.
    pub(crate) degree: u32,
}

/// The classes, by degree.
pub(crate) const CLASSES: [Class; 4] = [
    Class { name: "l40s", degree: 1 },
    Class { name: "a100", degree: 2 },
    Class { name: "h20", degree: 4 },
    Class { name: "h800", degree: 8 },
];

/// Classes that a job's workers are on, by turns of ten jobs: 1.8 GPUs a worker on average.
const TURNS: [&[usize]; 10] =
    [&[0], &[0, 1], &[0], &[1, 2], &[0], &[0], &[2, 3], &[0], &[0, 1], &[0]];

/// Workers of one job on one class.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) class: &'static Class,
    pub(crate) workers: u32,
}

/// How much there is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) nodes: u32,
    pub(crate) jobs: u32,
    pub(crate) workers: u32,
}

impl Size {
    /// The namespace of a job, as a number.
    pub(crate) fn namespace(job: u32) -> u32 {
        job / JOBS_PER_NAMESPACE
    }

    /// How many namespaces there are.
    pub(crate) fn namespaces(self) -> u32 {
        self.jobs.div_ceil(JOBS_PER_NAMESPACE)
    }

    /// A job's workers: as many as every job's, and half of them on each of its classes.
    pub(crate) fn groups(self, job: u32) -> Vec<Group> {
        let workers = self.workers / self.jobs + u32::from(job < self.workers % self.jobs);
        let classes = TURNS[job as usize % TURNS.len()];
        let count = classes.len() as u32;
        let group = |(place, class): (u32, &usize)| Group {
            class: &CLASSES[*class],
            workers: workers / count + u32::from(place < workers % count),
        };
        (0..).zip(classes).map(group).filter(|group| group.workers > 0).collect()
    }

    /// GPUs that the workers of all jobs take of a class.
    pub(crate) fn gpus(self, class: &Class) -> u32 {
        let groups = (0..self.jobs).flat_map(|job| self.groups(job));
        groups.filter(|group| group.class == class).map(|of| of.workers * class.degree).sum()
    }

    /// The class of each node; none for those of gateways. What the workers leave over is shared
    /// out evenly.
    pub(crate) fn layout(self) -> anyhow::Result<Vec<Option<&'static Class>>> {
        anyhow::ensure!(self.jobs > 0, "--jobs is at least 1");
        anyhow::ensure!(self.workers >= self.jobs, "--workers is at least --jobs");
        let mut nodes = vec![None; self.jobs.div_ceil(GATEWAYS_PER_NODE) as usize];
        let used: Vec<_> = CLASSES.iter().filter(|class| self.gpus(class) > 0).collect();
        for class in &used {
            let count = self.gpus(class).div_ceil(GPUS_PER_NODE) as usize;
            nodes.extend(std::iter::repeat_n(Some(*class), count));
        }
        let total = self.nodes as usize;
        anyhow::ensure!(
            nodes.len() <= total,
            "{} workers of {} jobs need at least --nodes {}",
            self.workers,
            self.jobs,
            nodes.len()
        );
        let spare = total - nodes.len();
        nodes.extend(used.iter().cycle().take(spare).map(|class| Some(*class)));
        Ok(nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_worker_has_a_place_and_every_gateway_a_node() {
        for (nodes, jobs, workers) in [(1000, 500, 4000), (20, 10, 80), (5, 1, 1), (9, 3, 7)] {
            let size = Size { nodes, jobs, workers };
            let groups: Vec<Group> = (0..jobs).flat_map(|job| size.groups(job)).collect();
            assert_eq!(groups.iter().map(|group| group.workers).sum::<u32>(), workers);
            let layout = size.layout().unwrap();
            assert_eq!(layout.len(), nodes as usize);
            for class in &CLASSES {
                let there = layout.iter().filter(|of| **of == Some(class)).count() as u32;
                let taken: u32 = groups
                    .iter()
                    .filter(|group| group.class == class)
                    .map(|group| group.workers * class.degree)
                    .sum();
                assert!(
                    there * GPUS_PER_NODE >= taken,
                    "{class:?}: {there} nodes for {taken} GPUs"
                );
            }
            let gateways = layout.iter().filter(|of| of.is_none()).count() as u32;
            assert!(gateways * GATEWAYS_PER_NODE >= jobs);
        }
    }

    #[test]
    fn too_few_nodes_are_refused_with_the_number_that_does() {
        let size = Size { nodes: 18, jobs: 10, workers: 80 };
        let refusal = size.layout().unwrap_err().to_string();
        assert_eq!(refusal, "80 workers of 10 jobs need at least --nodes 19");
        assert!(Size { nodes: 19, ..size }.layout().is_ok());
    }
}
