//! A bounded buffer between the scheduler and one reader that may be slow: the
//! scheduler never waits, and everything that piled up is read at once.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rollwright_core::fault::Fault;
use tokio::sync::Notify;

/// Bytes that may wait for one caller.
pub(crate) const LIMIT: usize = 8 << 20;
/// From how many bytes on a mailbox is worth a look when memory is short.
const LARGE: usize = 4 << 10;
/// Items and bytes of one read at most (a gRPC message is at most 4 MiB).
const READ_ITEMS: usize = 4096;
const READ_BYTES: usize = 1 << 20;

/// Bytes in all buffers of a queue together.
#[derive(Debug, Default)]
pub(crate) struct Budget(AtomicUsize);

impl Budget {
    pub(crate) fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn sub(&self, bytes: usize) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn used(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// What may wait in a mailbox.
pub(crate) trait Weigh {
    /// About how many bytes it takes.
    fn weight(&self) -> usize;
}

/// The buffer. One side writes, one reads.
#[derive(Debug)]
pub(crate) struct Mailbox<T: Weigh> {
    inner: Mutex<Inner<T>>,
    ready: Notify,
    budget: Arc<Budget>,
    /// Bytes that may wait.
    limit: usize,
}

#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // independent marks, not a state
struct Inner<T> {
    items: VecDeque<T>,
    bytes: usize,
    /// Actions whose end the reader still waits for.
    expected: usize,
    /// Nothing further will be expected.
    complete: bool,
    /// Nothing further can be written or read.
    closed: bool,
    /// Why it was closed, for the reader.
    fault: Option<Fault>,
    /// It was written to and the reader was not woken yet.
    dirty: bool,
    /// More than a little waited once.
    large: bool,
}

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    /// It waits; the writer must call [`Mailbox::wake`] after its round.
    First,
    /// It waits, and the reader will be woken already.
    More,
    /// Nobody reads.
    Closed,
    /// It would wait beyond the limit: the mailbox is closed now.
    Overflow,
}

impl<T: Weigh> Mailbox<T> {
    pub(crate) fn new(budget: Arc<Budget>, limit: usize) -> Self {
        let inner = Inner {
            items: VecDeque::new(),
            bytes: 0,
            expected: 0,
            complete: false,
            closed: false,
            fault: None,
            dirty: false,
            large: false,
        };
        Self { inner: Mutex::new(inner), ready: Notify::new(), budget, limit }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an item without waking the reader. It may overshoot the limit.
    pub(crate) fn write(&self, item: T, ends_one: bool) -> Written {
        self.write_all(std::iter::once(item), ends_one)
    }

    /// Adds items that belong together without waking the reader. They may
    /// overshoot the limit.
    pub(crate) fn write_all(&self, items: impl IntoIterator<Item = T>, ends_one: bool) -> Written {
        let mut inner = self.lock();
        if inner.closed {
            return Written::Closed;
        }
        if inner.bytes >= self.limit {
            drop(inner);
            self.close(Some(slow_reader(self.limit)));
            return Written::Overflow;
        }
        for item in items {
            let weight = item.weight();
            inner.bytes += weight;
            self.budget.add(weight);
            inner.items.push_back(item);
        }
        if ends_one {
            inner.expected = inner.expected.saturating_sub(1);
        }
        if std::mem::replace(&mut inner.dirty, true) { Written::More } else { Written::First }
    }

    /// Wakes the reader. True once, when more than a little waits.
    pub(crate) fn wake(&self) -> bool {
        let mut inner = self.lock();
        inner.dirty = false;
        let large = inner.bytes >= LARGE && !inner.large;
        inner.large |= large;
        drop(inner);
        self.ready.notify_one();
        large
    }

    /// Bytes that wait.
    pub(crate) fn unread(&self) -> usize {
        self.lock().bytes
    }

    /// The reader waits for the ends of `count` more actions.
    pub(crate) fn expect(&self, count: usize) {
        self.lock().expected += count;
    }

    /// Nothing further will be expected: reading ends with the last end.
    pub(crate) fn complete(&self) {
        self.lock().complete = true;
        self.ready.notify_one();
    }

    /// Drops what waits; the reader is told `fault`.
    pub(crate) fn close(&self, fault: Option<Fault>) {
        let mut inner = self.lock();
        if inner.closed {
            return;
        }
        inner.closed = true;
        inner.fault = fault;
        self.budget.sub(inner.bytes);
        inner.bytes = 0;
        inner.items = VecDeque::new();
        drop(inner);
        self.ready.notify_one();
    }

    /// True when nothing can be written any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Everything that waits, as far as one message holds. `None` after the end.
    pub(crate) async fn read(&self) -> Option<Result<Vec<T>, Fault>> {
        loop {
            let woken = self.ready.notified();
            if let Some(read) = self.try_read() {
                return read;
            }
            woken.await;
        }
    }

    #[allow(clippy::option_option)] // outer: nothing yet; inner: the end
    fn try_read(&self) -> Option<Option<Result<Vec<T>, Fault>>> {
        let mut inner = self.lock();
        if inner.closed {
            return Some(inner.fault.take().map(Err));
        }
        if inner.items.is_empty() {
            return (inner.complete && inner.expected == 0).then_some(None);
        }
        let mut bytes = 0;
        let mut count = 0;
        while count < READ_ITEMS && bytes < READ_BYTES {
            let Some(item) = inner.items.get(count) else { break };
            bytes += item.weight();
            count += 1;
        }
        let items: Vec<T> = inner.items.drain(..count).collect();
        inner.bytes -= bytes;
        drop(inner);
        self.budget.sub(bytes);
        Some(Some(Ok(items)))
    }
}

impl<T: Weigh> Drop for Mailbox<T> {
    fn drop(&mut self) {
        self.budget.sub(self.lock().bytes);
    }
}

/// Why a stream that nobody reads is ended.
pub(crate) fn slow_reader(bytes: usize) -> Fault {
    let message = format!(
        "{bytes} bytes of events were unread: read faster, or submit the same id again for the result"
    );
    crate::fault::infrastructure("SlowReader", message)
}

/// The reading end: closes the mailbox when it is dropped.
#[derive(Debug)]
pub(crate) struct Reader<T: Weigh>(pub(crate) Arc<Mailbox<T>>);

impl<T: Weigh> Reader<T> {
    pub(crate) async fn read(&self) -> Option<Result<Vec<T>, Fault>> {
        self.0.read().await
    }
}

impl<T: Weigh> Drop for Reader<T> {
    fn drop(&mut self) {
        self.0.close(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Item(usize);

    impl Weigh for Item {
        fn weight(&self) -> usize {
            self.0
        }
    }

    #[tokio::test]
    async fn reads_all_at_once_and_ends_after_the_last_end() {
        let budget = Arc::new(Budget::default());
        let mailbox = Mailbox::new(Arc::clone(&budget), LIMIT);
        mailbox.expect(2);
        assert_eq!(mailbox.write(Item(10), true), Written::First);
        assert_eq!(mailbox.write(Item(20), true), Written::More);
        mailbox.complete();
        assert_eq!(budget.used(), 30);
        assert_eq!(mailbox.read().await.map(|read| read.map(|items| items.len())), Some(Ok(2)));
        assert!(mailbox.read().await.is_none());
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test]
    async fn a_slow_reader_loses_its_stream_and_nothing_else() {
        let budget = Arc::new(Budget::default());
        let mailbox = Mailbox::new(Arc::clone(&budget), LIMIT);
        assert_eq!(mailbox.write(Item(LIMIT), false), Written::First);
        assert_eq!(mailbox.write(Item(1), false), Written::Overflow);
        assert_eq!(mailbox.write(Item(1), false), Written::Closed);
        assert_eq!(budget.used(), 0);
        let fault = mailbox.read().await.and_then(Result::err).map(|fault| fault.reason);
        assert_eq!(fault.as_deref(), Some("SlowReader"));
        assert!(mailbox.read().await.is_none());
    }
}
