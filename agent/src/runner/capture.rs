//! Head and tail of an action's output, both streams together, within a bound.
//! The plain mode needs it; in the fast one the helper does the same.

use std::collections::VecDeque;

use bytes::Bytes;
use rollwright_proto::v1::output::Stream;
use rollwright_proto::v1::{ActionOutput, Output};

/// The output of one action as it comes.
#[derive(Debug)]
pub struct Capture {
    action_id: String,
    limit: u64,
    head: u64,
    tail: VecDeque<(Stream, Bytes)>,
    tail_bytes: u64,
    dropped: [u64; 2],
    total: u64,
}

fn index(stream: Stream) -> usize {
    usize::from(stream == Stream::Stderr)
}

impl Capture {
    /// Keeps `limit` bytes of each of head and tail.
    pub fn new(action_id: &str, limit: u64) -> Self {
        Self {
            action_id: action_id.to_owned(),
            limit,
            head: 0,
            tail: VecDeque::new(),
            tail_bytes: 0,
            dropped: [0; 2],
            total: 0,
        }
    }

    /// Takes a piece; what belongs to the head comes back at once.
    pub fn push(&mut self, stream: Stream, mut data: Bytes) -> Option<ActionOutput> {
        self.total += data.len() as u64;
        let room = usize::try_from(self.limit - self.head).unwrap_or(usize::MAX);
        let head = data.split_to(room.min(data.len()));
        let offset = self.head;
        self.head += head.len() as u64;
        self.push_tail(stream, data);
        (!head.is_empty()).then(|| self.output(stream, head, offset, 0))
    }

    fn push_tail(&mut self, stream: Stream, data: Bytes) {
        if data.is_empty() {
            return;
        }
        self.tail_bytes += data.len() as u64;
        self.tail.push_back((stream, data));
        while self.tail_bytes > self.limit {
            let Some((stream, front)) = self.tail.front_mut() else { return };
            let over = usize::try_from(self.tail_bytes - self.limit).unwrap_or(usize::MAX);
            let cut = over.min(front.len());
            drop(front.split_to(cut));
            self.dropped[index(*stream)] += cut as u64;
            self.tail_bytes -= cut as u64;
            if front.is_empty() {
                self.tail.pop_front();
            }
        }
    }

    /// The end of the output: the tail, with what was dropped before it stated.
    pub fn finish(&mut self) -> Vec<ActionOutput> {
        let mut left = self.dropped;
        let mut offset = self.head;
        let mut outputs = Vec::new();
        for (stream, data) in std::mem::take(&mut self.tail) {
            let dropped = std::mem::take(&mut left[index(stream)]);
            let length = data.len() as u64;
            outputs.push(self.output(stream, data, offset, dropped));
            offset += length;
        }
        for stream in [Stream::Stdout, Stream::Stderr] {
            let dropped = left[index(stream)];
            if dropped > 0 {
                outputs.push(self.output(stream, Bytes::new(), offset, dropped));
            }
        }
        outputs
    }

    /// Bytes in all, and of those dropped.
    pub fn bytes(&self) -> (u64, u64) {
        (self.total, self.dropped.iter().sum())
    }

    fn output(&self, stream: Stream, data: Bytes, offset: u64, dropped: u64) -> ActionOutput {
        let output = Output { stream: stream.into(), data, dropped_before: dropped };
        ActionOutput { action_id: self.action_id.clone(), output: Some(output), offset }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn head_and_tail_are_kept_and_the_cut_is_stated(
            pieces in proptest::collection::vec((any::<bool>(), 0usize..20), 0..40),
            limit in 0u64..60,
        ) {
            let mut capture = Capture::new("a", limit);
            let (mut all, mut kept) = (Vec::new(), Vec::new());
            let mut next = 0u8;
            for (stderr, length) in pieces {
                let data: Vec<u8> = (0..length).map(|_| { next = next.wrapping_add(1); next }).collect();
                all.extend_from_slice(&data);
                let stream = if stderr { Stream::Stderr } else { Stream::Stdout };
                kept.extend(capture.push(stream, data.into()));
            }
            kept.extend(capture.finish());
            let mut bytes = Vec::new();
            let mut dropped = 0;
            for piece in &kept {
                prop_assert_eq!(piece.offset, bytes.len() as u64);
                let output = piece.output.as_ref().unwrap();
                bytes.extend_from_slice(&output.data);
                dropped += output.dropped_before;
            }
            prop_assert_eq!(capture.bytes(), (all.len() as u64, dropped));
            let head = (limit as usize).min(all.len());
            let tail = (limit as usize).min(all.len() - head);
            let want = [&all[..head], &all[all.len() - tail..]].concat();
            prop_assert_eq!(bytes, want);
        }
    }
}
