//! Aligned intervals of a node's GPUs.

use std::fmt;

/// Most GPUs of a node.
pub const MOST_GPUS: u32 = 128;

/// How many GPUs work on one action: 1, 2, 4 or 8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Degree(u8);

/// No size of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{got} GPUs are no degree: use 1, 2, 4 or 8")]
pub struct InvalidDegree {
    got: u32,
}

impl Degree {
    /// All of them, ascending.
    pub const ALL: [Self; 4] = [Self(0), Self(1), Self(2), Self(3)];

    /// Of so many GPUs.
    pub fn new(gpus: u32) -> Result<Self, InvalidDegree> {
        let of = Self::ALL.into_iter().find(|degree| degree.gpus() == gpus);
        of.ok_or(InvalidDegree { got: gpus })
    }

    /// Number of GPUs.
    pub const fn gpus(self) -> u32 {
        1 << self.0
    }

    /// The `a` of a chunk of `2^a` GPUs.
    pub const fn level(self) -> usize {
        self.0 as usize
    }

    /// The next larger one.
    pub(super) fn double(self) -> Option<Self> {
        Self::ALL.get(self.level() + 1).copied()
    }
}

impl fmt::Display for Degree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.gpus())
    }
}

/// An interval of `2^a` GPUs of one node that begins at a multiple of its size
/// (ARL-Tangram 5.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Chunk {
    /// The node, by its place in [`super::Chunks`].
    pub node: usize,
    start: u32,
    degree: Degree,
}

impl Chunk {
    /// The chunk that begins at GPU `start`; `None` where that is no multiple of its size,
    /// or beyond [`MOST_GPUS`].
    pub fn new(node: usize, start: u32, degree: Degree) -> Option<Self> {
        let fits = start.checked_add(degree.gpus()).is_some_and(|end| end <= MOST_GPUS);
        (fits && start.is_multiple_of(degree.gpus())).then_some(Self { node, start, degree })
    }

    /// Its first GPU.
    pub const fn start(self) -> u32 {
        self.start
    }

    /// Its size.
    pub const fn degree(self) -> Degree {
        self.degree
    }

    /// Its GPUs, ascending.
    pub fn gpus(self) -> std::ops::Range<u32> {
        self.start..self.start + self.degree.gpus()
    }

    /// A bit for each of its GPUs.
    pub const fn bits(self) -> u128 {
        ((1 << self.degree.gpus()) - 1) << self.start
    }

    /// Whether both have a GPU.
    pub const fn overlaps(self, other: Self) -> bool {
        self.node == other.node && self.bits() & other.bits() != 0
    }

    /// The chunks of this size on a node of `gpus`.
    pub(super) fn all(node: usize, gpus: u32, degree: Degree) -> impl Iterator<Item = Self> {
        let size = degree.gpus();
        (0..gpus.min(MOST_GPUS) / size).map(move |i| Self { node, start: i * size, degree })
    }

    /// The chunk of twice the size that it is a half of.
    pub(super) fn parent(self) -> Option<Self> {
        let degree = self.degree.double()?;
        Self::new(self.node, self.start / degree.gpus() * degree.gpus(), degree)
    }
}

impl fmt::Display for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.degree.gpus() == 1 {
            return write!(f, "GPU {}", self.start);
        }
        write!(f, "GPUs {}-{}", self.start, self.start + self.degree.gpus() - 1)
    }
}
