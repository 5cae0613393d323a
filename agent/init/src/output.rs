//! Bounded output of an action: the head, and the newest as tail.

use std::collections::VecDeque;

use crate::protocol::{MAX_PIECE, Stream};

/// A run of bytes of one stream.
#[derive(Debug, Clone, Copy)]
struct Run {
    stream: Stream,
    len: usize,
}

/// What an action wrote: the first `limit` bytes of both streams together, and the
/// last `limit` of what came after them.
#[derive(Debug)]
pub(crate) struct OutputBuffer {
    limit: usize,
    head: Vec<u8>,
    head_runs: Vec<Run>,
    tail: VecDeque<u8>,
    tail_runs: VecDeque<Run>,
    dropped: [u64; 2],
    total: u64,
}

/// How much of an [`OutputBuffer`] was reported.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cursor {
    run: usize,
    within: usize,
    offset: usize,
    stated: [bool; 2],
}

/// The next piece to report.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Stream.
    pub(crate) stream: Stream,
    /// Offset of its first byte in what is kept.
    pub(crate) offset: u64,
    /// Bytes, empty where only a loss is stated.
    pub(crate) data: Vec<u8>,
    /// Bytes of this stream dropped just before.
    pub(crate) dropped_before: u64,
}

impl OutputBuffer {
    /// Keeps `limit` bytes of each of head and tail.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            head: Vec::new(),
            head_runs: Vec::new(),
            tail: VecDeque::new(),
            tail_runs: VecDeque::new(),
            dropped: [0; 2],
            total: 0,
        }
    }

    /// Takes what was read from a stream.
    pub(crate) fn push(&mut self, stream: Stream, data: &[u8]) {
        self.total += data.len() as u64;
        let (head, tail) = data.split_at(data.len().min(self.limit - self.head.len()));
        if !head.is_empty() {
            self.head.extend_from_slice(head);
            match self.head_runs.last_mut() {
                Some(run) if run.stream == stream => run.len += head.len(),
                _ => self.head_runs.push(Run { stream, len: head.len() }),
            }
        }
        if !tail.is_empty() {
            self.push_tail(stream, tail);
        }
    }

    fn push_tail(&mut self, stream: Stream, data: &[u8]) {
        let (lost, kept) = data.split_at(data.len().saturating_sub(self.limit));
        self.drop_oldest((self.tail.len() + kept.len()).saturating_sub(self.limit));
        self.dropped[stream as usize] += lost.len() as u64;
        if kept.is_empty() {
            return;
        }
        self.tail.extend(kept);
        match self.tail_runs.back_mut() {
            Some(run) if run.stream == stream => run.len += kept.len(),
            _ => self.tail_runs.push_back(Run { stream, len: kept.len() }),
        }
    }

    fn drop_oldest(&mut self, mut count: usize) {
        self.tail.drain(..count);
        while count > 0 {
            let Some(run) = self.tail_runs.front_mut() else { return };
            let part = run.len.min(count);
            self.dropped[run.stream as usize] += part as u64;
            run.len -= part;
            count -= part;
            if run.len == 0 {
                self.tail_runs.pop_front();
            }
        }
    }

    /// Bytes written, kept or not.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Bytes dropped.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.iter().sum()
    }

    /// Bytes that it holds.
    pub(crate) fn kept(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    /// The next piece after `cursor`, which is moved behind it. The tail is only
    /// given once the output is `complete`, since it changes until then.
    pub(crate) fn next(&self, cursor: &mut Cursor, complete: bool) -> Option<Piece> {
        loop {
            let in_tail = cursor.run.checked_sub(self.head_runs.len());
            let run = match in_tail {
                None => self.head_runs.get(cursor.run),
                Some(_) if !complete => None,
                Some(index) => self.tail_runs.get(index),
            };
            let Some(run) = run else {
                return if complete { self.next_loss(cursor) } else { None };
            };
            if cursor.within == run.len {
                // The last run of the head may still grow.
                if !complete && cursor.run + 1 == self.head_runs.len() {
                    return None;
                }
                cursor.run += 1;
                cursor.within = 0;
                continue;
            }
            let len = (run.len - cursor.within).min(MAX_PIECE);
            let (stream, offset) = (run.stream, cursor.offset);
            let data = if in_tail.is_none() {
                self.head[offset..offset + len].to_vec()
            } else {
                let begin = offset - self.head.len();
                self.tail.range(begin..begin + len).copied().collect()
            };
            let dropped_before =
                if in_tail.is_some() { self.state_loss(cursor, stream) } else { 0 };
            cursor.within += len;
            cursor.offset += len;
            return Some(Piece { stream, offset: offset as u64, data, dropped_before });
        }
    }

    /// A stream that lost bytes and has none in the tail says so in an empty piece.
    fn next_loss(&self, cursor: &mut Cursor) -> Option<Piece> {
        [Stream::Stdout, Stream::Stderr].into_iter().find_map(|stream| {
            let dropped_before = self.state_loss(cursor, stream);
            (dropped_before > 0).then(|| Piece {
                stream,
                offset: cursor.offset as u64,
                data: Vec::new(),
                dropped_before,
            })
        })
    }

    fn state_loss(&self, cursor: &mut Cursor, stream: Stream) -> u64 {
        if std::mem::replace(&mut cursor.stated[stream as usize], true) {
            return 0;
        }
        self.dropped[stream as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(buffer: &OutputBuffer, cursor: &mut Cursor, complete: bool) -> Vec<Piece> {
        std::iter::from_fn(|| buffer.next(cursor, complete)).collect()
    }

    proptest! {
        #[test]
        fn head_and_tail_are_what_a_plain_model_keeps(
            limit in 0usize..40,
            writes in proptest::collection::vec((any::<bool>(), proptest::collection::vec(any::<u8>(), 0..30), any::<bool>()), 0..30),
        ) {
            let mut buffer = OutputBuffer::new(limit);
            let mut cursor = Cursor::default();
            let mut written = Vec::new();
            let mut pieces = Vec::new();
            for (err, data, look) in writes {
                let stream = if err { Stream::Stderr } else { Stream::Stdout };
                buffer.push(stream, &data);
                written.extend(data.into_iter().map(|byte| (stream, byte)));
                if look {
                    pieces.extend(all(&buffer, &mut cursor, false));
                }
            }
            pieces.extend(all(&buffer, &mut cursor, true));
            prop_assert_eq!(all(&buffer, &mut cursor, true), vec![]);

            let head = written.len().min(limit);
            let tail = (written.len() - head).min(limit);
            let lost = &written[head..written.len() - tail];
            let kept: Vec<_> = written[..head].iter().chain(&written[written.len() - tail..]).copied().collect();
            let mut seen = Vec::new();
            let mut losses = [0u64; 2];
            for piece in &pieces {
                prop_assert_eq!(piece.offset as usize, seen.len());
                losses[piece.stream as usize] += piece.dropped_before;
                seen.extend(piece.data.iter().map(|byte| (piece.stream, *byte)));
            }
            prop_assert_eq!(&seen, &kept);
            for stream in [Stream::Stdout, Stream::Stderr] {
                let of_stream = lost.iter().filter(|(s, _)| *s == stream).count();
                prop_assert_eq!(losses[stream as usize], of_stream as u64);
            }
            prop_assert_eq!(buffer.total(), written.len() as u64);
            prop_assert_eq!(buffer.dropped(), lost.len() as u64);
            prop_assert_eq!(buffer.kept(), kept.len());

            // Reported again from the start it is the same bytes.
            let again: Vec<u8> = all(&buffer, &mut Cursor::default(), true).into_iter().flat_map(|p| p.data).collect();
            prop_assert_eq!(again, kept.into_iter().map(|(_, byte)| byte).collect::<Vec<_>>());
        }
    }
}
