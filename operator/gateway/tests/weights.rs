//! The bucket store and its pullers, on real disks and over real HTTP.
#![allow(clippy::unwrap_used)] // in what tests share
#![allow(clippy::similar_names)] // a puller pulls what is pulled

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Path as UrlPath;
use axum::http::{HeaderMap, Response, StatusCode};
use axum::routing::get;
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use rollwright_core::fault::{Fault, FaultKind};
use rollwright_core::version::Version;
use rollwright_gateway::weights::{BucketStore, Origin, PullConfig, Pulled, Puller, StoreConfig};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

const V: Version = Version(7);

fn config(dir: &Path) -> StoreConfig {
    StoreConfig { dir: dir.to_owned(), max_bucket: 1 << 20, max_version: 3 << 20, max_buckets: 8 }
}

async fn store(dir: &Path) -> BucketStore {
    BucketStore::open(config(dir)).await.unwrap()
}

fn body(data: &[u8]) -> impl stream::Stream<Item = Result<Bytes, Infallible>> + Send + use<> {
    let pieces: Vec<_> = data.chunks(10_000).map(Bytes::copy_from_slice).map(Ok).collect();
    stream::iter(pieces)
}

/// Content that differs from bucket to bucket.
fn content(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 + seed * 7 + at / 251) as u8).collect()
}

async fn push(store: &BucketStore, version: Version, name: &str, data: &[u8]) {
    store.put(version, name, None, body(data)).await.unwrap();
}

async fn read(store: &BucketStore, name: &str, range: std::ops::Range<u64>) -> Vec<u8> {
    let pieces = store.stream(V, name, range).await.unwrap();
    let pieces: Vec<Bytes> = pieces.try_collect().await.unwrap();
    pieces.concat()
}

fn hex(digest: &[u8]) -> String {
    digest
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .map(|digit| char::from_digit(digit.into(), 16).unwrap())
        .collect()
}

/// Every file below a directory, by its path there.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(next) = dirs.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                let name = path.strip_prefix(dir).unwrap().display().to_string();
                found.insert(name, std::fs::read(path).unwrap());
            }
        }
    }
    found
}

#[tokio::test]
async fn buckets_are_stored_listed_and_read_by_range() {
    let dir = TempDir::new().unwrap();
    let store = store(dir.path()).await;
    let data = content(1, 300_000);
    let digest: [u8; 32] = Sha256::digest(&data).into();
    let early = store.put(V, "a", None, body(&data)).await.unwrap_err();
    assert_eq!((early.kind, early.reason.as_ref()), (FaultKind::Stale, "VersionNotBegun"));
    store.begin(V).await.unwrap();
    let bucket = store.put(V, "a.safetensors", Some(digest), body(&data)).await.unwrap();
    assert_eq!(bucket.bytes, 300_000);
    assert_eq!(bucket.sha256, hex(&digest));
    push(&store, V, "empty", b"").await;
    let listing = store.list(V).unwrap();
    let names: Vec<_> = listing.buckets.iter().map(|bucket| bucket.name.as_str()).collect();
    assert_eq!((names.as_slice(), listing.complete), (&["a.safetensors", "empty"][..], false));
    for range in [0..300_000, 0..1, 299_999..300_000, 123_456..234_567, 5..5] {
        let expected = &data[range.start as usize..range.end as usize];
        assert_eq!(read(&store, "a.safetensors", range).await, expected);
    }
    assert_eq!(store.length(V, "b").unwrap_err().reason, "BucketNotFound");
    assert_eq!(store.list(Version(8)).unwrap_err().reason, "VersionNotFound");
    // The directory is what an engine loads: nothing but buckets, and hidden files.
    assert_eq!(std::fs::read(store.path(V).join("a.safetensors")).unwrap(), data);
    assert!(store.push_time(V).is_some());

    store.seal(V).unwrap();
    assert!(store.list(V).unwrap().complete && !store.is_open(V));
    let late = store.put(V, "b", None, body(b"x")).await.unwrap_err();
    assert_eq!(late.reason, "VersionNotBegun");
}

#[tokio::test]
async fn what_is_not_whole_is_not_there_and_leaves_nothing() {
    let dir = TempDir::new().unwrap();
    let store = store(dir.path()).await;
    store.begin(V).await.unwrap();
    let data = content(2, 500_000);
    let broken = stream::iter([Ok(Bytes::from(data.clone())), Err("connection reset")]);
    let fault = store.put(V, "a", None, broken).await.unwrap_err();
    assert!(fault.message.contains("connection reset"), "{fault}");
    assert!(
        store
            .put(V, "a", Some([0; 32]), body(&data))
            .await
            .is_err_and(|fault| fault.message.contains("00000000"))
    );
    // Dropped in the middle: the sender has gone.
    let (piece_tx, piece_rx) = mpsc::channel::<Result<Bytes, Infallible>>(1);
    let upload = {
        let store = store.clone();
        let pieces = tokio_stream::wrappers::ReceiverStream::new(piece_rx);
        tokio::spawn(async move { store.put(V, "a", None, pieces).await })
    };
    // When it takes the third, it has written the first.
    for _ in 0..3 {
        piece_tx.send(Ok(Bytes::from_static(b"piece"))).await.unwrap();
    }
    assert_eq!(store.seal(V).unwrap_err().reason, "UploadsUnderWay");
    upload.abort();
    assert!(upload.await.unwrap_err().is_cancelled());
    assert_eq!(store.seal(V).unwrap_err().reason, "NoBuckets");
    assert_eq!(files(dir.path()), BTreeMap::new());
    for name in ["../a", ".meta", "", "a/b"] {
        let fault = store.put(V, name, None, body(b"x")).await.unwrap_err();
        assert_eq!(fault.reason, "InvalidBucketName", "{name:?}");
    }
    // What was refused does not count: all of the version's bytes are free.
    for name in ["a", "b", "c"] {
        push(&store, V, name, &content(3, 1 << 20)).await;
    }
}

#[tokio::test]
async fn the_disk_is_bounded() {
    let dir = TempDir::new().unwrap();
    let store = store(dir.path()).await;
    store.begin(V).await.unwrap();
    assert!(store.fits("a", Some(1 << 20)).is_ok() && store.fits("a", None).is_ok());
    assert_eq!(store.fits("a", Some((1 << 20) + 1)).unwrap_err().reason, "BucketTooLarge");
    let long = store.put(V, "a", None, body(&content(0, (1 << 20) + 1))).await.unwrap_err();
    assert_eq!(long.reason, "BucketTooLarge");
    for name in ["a", "b", "c"] {
        push(&store, V, name, &content(3, 1 << 20)).await;
    }
    let full = store.put(V, "d", None, body(b"x")).await.unwrap_err();
    assert_eq!(full.reason, "VersionTooLarge");
    for name in ["d", "e", "f", "g", "h"] {
        push(&store, V, name, b"").await;
    }
    let many = store.put(V, "i", None, body(b"")).await.unwrap_err();
    assert_eq!(many.reason, "TooManyBuckets");

    // Old versions go; one that is being read is read to its end.
    store.begin(Version(8)).await.unwrap();
    push(&store, Version(8), "a", b"new").await;
    let mut reading = store.stream(V, "a", 0..1 << 20).await.unwrap();
    let first = reading.next().await.unwrap().unwrap();
    store.retain(&[Version(8)]).await.unwrap();
    let rest: Vec<Bytes> = reading.try_collect().await.unwrap();
    assert_eq!([&first[..], &rest.concat()].concat(), content(3, 1 << 20));
    assert_eq!(store.list(V).unwrap_err().reason, "VersionNotFound");
    let left: Vec<_> = files(dir.path()).into_keys().collect();
    assert_eq!(left, ["8/.meta/a", "8/a"]);
}

#[tokio::test]
async fn a_repeated_push_is_fine_and_another_content_is_not() {
    let dir = TempDir::new().unwrap();
    let store = store(dir.path()).await;
    store.begin(V).await.unwrap();
    let first = store.put(V, "a", None, body(b"weights")).await.unwrap();
    assert_eq!(store.put(V, "a", None, body(b"weights")).await.unwrap(), first);
    let fault = store.put(V, "a", None, body(b"other")).await.unwrap_err();
    assert_eq!(fault.reason, "BucketConflict");
    assert_eq!(read(&store, "a", 0..7).await, b"weights");
    // Many at once: one wins, and what is listed is what is read.
    let pushes = (0..8).map(|n| {
        let store = store.clone();
        async move { store.put(V, "race", None, body(&content(n, 1000))).await }
    });
    let pushed: Vec<_> = futures::future::join_all(pushes).await;
    let won: Vec<_> = pushed.into_iter().filter_map(Result::ok).collect();
    assert_eq!(won.len(), 1);
    let digest = Sha256::digest(read(&store, "race", 0..1000).await);
    assert_eq!(won[0].sha256, hex(&digest));
}

#[tokio::test]
async fn a_restart_keeps_what_was_whole() {
    let dir = TempDir::new().unwrap();
    let first = store(dir.path()).await;
    first.begin(V).await.unwrap();
    push(&first, V, "a", b"weights").await;
    push(&first, V, "cut", b"longer").await;
    drop(first);
    let version = dir.path().join("7");
    std::fs::write(version.join(".partial-3"), b"half").unwrap();
    std::fs::write(version.join("unknown"), b"no record").unwrap();
    std::fs::write(version.join("cut"), b"long").unwrap();
    let store = store(dir.path()).await;
    let listing = store.list(V).unwrap();
    assert_eq!(listing.buckets.len(), 1);
    assert_eq!(read(&store, "a", 0..7).await, b"weights");
    assert!(!version.join(".partial-3").exists() && !version.join("unknown").exists());
    // The trainer begins it again: from nothing, so that no old bucket mixes in.
    store.begin(V).await.unwrap();
    assert_eq!(store.list(V).unwrap().buckets, []);
    push(&store, V, "a", b"others").await;
    store.begin(V).await.unwrap();
    assert_eq!(store.list(V).unwrap().buckets.len(), 1, "begun twice is begun once");
}

fn pull_config(dir: &Path) -> PullConfig {
    PullConfig {
        dir: dir.to_owned(),
        bandwidth: None,
        parallel: 2,
        patience: Duration::from_secs(20),
    }
}

fn loaded(pulled: &Pulled) -> BTreeMap<String, Vec<u8>> {
    files(&pulled.path)
}

#[tokio::test]
async fn a_puller_fetches_during_the_push_and_ends_with_the_commit() {
    let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let store = store(from.path()).await;
    store.begin(V).await.unwrap();
    // An old version, a kept one, and strangers in the directory of this one.
    for old in ["5", "6", "7"] {
        std::fs::create_dir(to.path().join(old)).unwrap();
        std::fs::write(to.path().join(old).join("old"), b"old").unwrap();
    }
    let puller = Arc::new(Puller::new(Origin::Store(store.clone()), pull_config(to.path())));
    let pulls = [(); 2].map(|()| {
        let puller = Arc::clone(&puller);
        tokio::spawn(async move { puller.pull(V, &[Version(6)]).await })
    });
    let mut expected = BTreeMap::new();
    for n in 0..6 {
        let (name, data) = (format!("bucket-{n}"), content(n, 100_000 * n));
        push(&store, V, &name, &data).await;
        expected.insert(name, data);
    }
    store.seal(V).unwrap();
    for pull in pulls {
        let pulled = pull.await.unwrap().unwrap();
        assert_eq!(loaded(&pulled), expected);
        // Two workers of a node, one transfer.
        assert_eq!((pulled.bytes, pulled.resumed), (1_500_000, 0));
        assert!(pulled.exposed <= pulled.pull);
    }
    let mut left: Vec<_> =
        std::fs::read_dir(to.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["6", "7"]);
}

#[tokio::test]
async fn a_pull_of_an_aborted_version_ends_as_stale() {
    let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let store = store(from.path()).await;
    store.begin(V).await.unwrap();
    push(&store, V, "a", b"x").await;
    let puller = Puller::new(Origin::Store(store.clone()), pull_config(to.path()));
    let pull = tokio::spawn(async move { puller.pull(V, &[]).await });
    let whole = async {
        while !to.path().join("7/a").exists() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), whole).await.unwrap();
    store.retain(&[]).await.unwrap();
    let fault = pull.await.unwrap().unwrap_err();
    assert_eq!((fault.kind, fault.reason.as_ref()), (FaultKind::Stale, "VersionGone"));
    assert_eq!(store.complete(V).await.unwrap_err().kind, FaultKind::Stale);
}

/// How a gateway misbehaves at the n-th read of a bucket.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Trick {
    None,
    /// Ends after so many bytes.
    Cut(u64),
    /// Breaks the connection after so many bytes, of which some may be lost.
    Break(u64),
    /// Other bytes.
    Corrupt,
    /// Ignores `Range`.
    Whole,
    Error,
}

/// The routes of a gateway over a store, with tricks; the ranges that were asked for.
async fn gateway(
    store: BucketStore,
    trick: impl Fn(usize) -> Trick + Clone + Send + Sync + 'static,
) -> (SocketAddr, Arc<Mutex<Vec<u64>>>) {
    let asked: Arc<Mutex<Vec<u64>>> = Arc::default();
    let reads = Arc::new(AtomicUsize::new(0));
    let (lists, log) = (store.clone(), Arc::clone(&asked));
    let list = move |UrlPath(version): UrlPath<u64>, headers: HeaderMap| async move {
        if headers.get("authorization").is_none_or(|key| key != "Bearer key") {
            return (StatusCode::UNAUTHORIZED, String::new());
        }
        match lists.list(Version(version)) {
            Ok(listing) => (StatusCode::OK, serde_json::to_string(&listing).unwrap()),
            Err(_) => (StatusCode::NOT_FOUND, String::new()),
        }
    };
    let read = move |UrlPath((version, name)): UrlPath<(u64, String)>, headers: HeaderMap| {
        let trick = trick(reads.fetch_add(1, Ordering::SeqCst));
        let (store, log) = (store.clone(), Arc::clone(&log));
        async move {
            let range = headers.get("range").map(|range| range.to_str().unwrap().to_owned());
            let from = range.map_or(0, |range| {
                range.strip_prefix("bytes=").unwrap().trim_end_matches('-').parse().unwrap()
            });
            log.lock().unwrap().push(from);
            let length = store.length(Version(version), &name).unwrap();
            let sent = if trick == Trick::Whole { 0 } else { from };
            let end = match trick {
                Trick::Cut(bytes) | Trick::Break(bytes) => (sent + bytes).min(length),
                _ => length,
            };
            let pieces = store.stream(Version(version), &name, sent..end).await.unwrap();
            let broken = (matches!(trick, Trick::Break(_)))
                .then(|| Fault::new(FaultKind::Infrastructure, "Broken", "the cable is cut"));
            let pieces = pieces.chain(stream::iter(broken.map(Err)));
            let pieces = pieces.map_ok(move |piece| match trick {
                Trick::Corrupt => piece.iter().map(|byte| !byte).collect(),
                _ => piece,
            });
            let status = match trick {
                Trick::Error => 503,
                _ if sent > 0 => 206,
                _ => 200,
            };
            Response::builder().status(status).body(Body::from_stream(pieces)).unwrap()
        }
    };
    let router = Router::new()
        .route("/rollout/v1/weights/{version}/buckets", get(list))
        .route("/rollout/v1/weights/{version}/buckets/{name}", get(read));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    (address, asked)
}

fn origin(address: SocketAddr) -> Origin {
    Origin::gateway(&format!("http://{address}/"), Some("key")).unwrap()
}

async fn pull_through(
    trick: impl Fn(usize) -> Trick + Clone + Send + Sync + 'static,
) -> (Result<Pulled, Fault>, Vec<u8>, Vec<u64>, TempDir) {
    let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let store = store(from.path()).await;
    store.begin(V).await.unwrap();
    let data = content(9, 1 << 20);
    push(&store, V, "a", &data).await;
    store.seal(V).unwrap();
    let (address, asked) = gateway(store, trick).await;
    let pulled = Puller::new(origin(address), pull_config(to.path())).pull(V, &[]).await;
    let asked = asked.lock().unwrap().clone();
    (pulled, data, asked, to)
}

#[tokio::test]
async fn a_transfer_that_breaks_goes_on_where_it_ended() {
    let tricks = [Trick::Error, Trick::Cut(300_000), Trick::Cut(0), Trick::Cut(400_000)];
    let (pulled, data, asked, _dir) =
        pull_through(move |read| tricks.get(read).copied().unwrap_or(Trick::None)).await;
    let pulled = pulled.unwrap();
    assert_eq!(loaded(&pulled), BTreeMap::from([("a".to_owned(), data)]));
    // Each byte once over the wire, however often it broke.
    assert_eq!(pulled.bytes, 1 << 20);
    assert_eq!(asked, [0, 0, 300_000, 300_000, 700_000]);
}

#[tokio::test]
async fn a_connection_that_breaks_is_made_again() {
    let (pulled, data, asked, _dir) =
        pull_through(|read| if read < 3 { Trick::Break(400_000) } else { Trick::None }).await;
    let pulled = pulled.unwrap();
    assert_eq!(loaded(&pulled), BTreeMap::from([("a".to_owned(), data)]));
    assert_eq!((pulled.bytes, asked.len()), (1 << 20, 4));
    assert!(asked.is_sorted(), "{asked:?}");
}

#[tokio::test]
async fn an_origin_that_cannot_resume_is_read_from_the_beginning() {
    let tricks = [Trick::Cut(300_000), Trick::Whole];
    let (pulled, data, asked, _dir) =
        pull_through(move |read| tricks.get(read).copied().unwrap_or(Trick::None)).await;
    let pulled = pulled.unwrap();
    assert_eq!(loaded(&pulled), BTreeMap::from([("a".to_owned(), data)]));
    assert_eq!((pulled.bytes, asked), ((1 << 20) + 300_000, vec![0, 300_000]));
}

#[tokio::test]
async fn other_bytes_are_never_taken_for_weights() {
    let (pulled, data, asked, _dir) =
        pull_through(|read| if read == 0 { Trick::Corrupt } else { Trick::None }).await;
    assert_eq!(loaded(&pulled.unwrap()), BTreeMap::from([("a".to_owned(), data)]));
    assert_eq!(asked, [0, 0]);
    let (pulled, _, asked, dir) = pull_through(|_| Trick::Corrupt).await;
    let fault = pulled.unwrap_err();
    assert_eq!((fault.kind, fault.reason.as_ref()), (FaultKind::Infrastructure, "BucketCorrupt"));
    assert_eq!(asked.len(), 3);
    assert_eq!(files(dir.path()), BTreeMap::new());
}

#[tokio::test]
async fn a_new_puller_uses_what_an_older_one_left() {
    let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let store = store(from.path()).await;
    store.begin(V).await.unwrap();
    let data = content(9, 1 << 20);
    for name in ["half", "whole", "wrong"] {
        push(&store, V, name, &data).await;
    }
    store.seal(V).unwrap();
    let dir = to.path().join("7");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join(".half.part"), &data[..600_000]).unwrap();
    std::fs::write(dir.join("whole"), &data).unwrap();
    std::fs::write(dir.join("wrong"), content(8, 1 << 20)).unwrap();
    let (address, asked) = gateway(store, |_| Trick::None).await;
    let pulled = Puller::new(origin(address), pull_config(to.path())).pull(V, &[]).await.unwrap();
    let expected = ["half", "whole", "wrong"].map(|name| (name.to_owned(), data.clone()));
    assert_eq!(loaded(&pulled), BTreeMap::from(expected));
    assert_eq!(pulled.bytes, (1 << 20) - 600_000 + (1 << 20));
    assert_eq!(pulled.resumed, 600_000 + (1 << 20));
    let mut asked = asked.lock().unwrap().clone();
    asked.sort_unstable();
    assert_eq!(asked, [0, 600_000]);
}

#[tokio::test]
async fn a_commit_lifts_the_cap_and_a_wrong_key_is_final() {
    let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let store = store(from.path()).await;
    store.begin(V).await.unwrap();
    push(&store, V, "a", &content(1, 1 << 20)).await;
    let (address, _) = gateway(store.clone(), |_| Trick::None).await;
    // At a byte a second this would take twelve days.
    let slow = PullConfig { bandwidth: Some(1), ..pull_config(to.path()) };
    let puller = Puller::new(origin(address), slow);
    let pull = tokio::spawn(async move { puller.pull(V, &[]).await });
    let begun = async {
        while !std::fs::metadata(to.path().join("7/.a.part")).is_ok_and(|file| file.len() > 0) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), begun).await.unwrap();
    store.seal(V).unwrap();
    let pulled = tokio::time::timeout(Duration::from_secs(20), pull).await.unwrap();
    let pulled = pulled.unwrap().unwrap();
    assert_eq!(pulled.bytes, 1 << 20);
    assert!(pulled.exposed > Duration::ZERO && pulled.exposed < pulled.pull, "{pulled:?}");

    let origin = Origin::gateway(&format!("http://{address}"), Some("wrong")).unwrap();
    let fault = Puller::new(origin, pull_config(to.path())).pull(V, &[]).await.unwrap_err();
    assert_eq!((fault.kind, fault.reason.as_ref()), (FaultKind::User, "Unauthenticated"));
}
