//! Blocks of GPU memory and copies to them.

use std::os::fd::OwnedFd;
use std::path::Path;

use rollwright_agent::gpu::cuda::{Arena, Driver};
use rollwright_agent::gpu::pinned::{Memory as _, MemoryError, Weights};
use rustix::io::{FdFlags, fcntl_getfd, pread};

use crate::machine::{Machine, is_ordered, order, state};

const BLOCK: u64 = 2 << 20;
/// Not a whole number of blocks.
const BYTES: usize = 9 * BLOCK as usize - 4321;

/// A model file, and its weights: no two blocks are the same.
fn weights(dir: &Path) -> (Weights, Vec<u8>) {
    let bytes: Vec<u8> = (0..BYTES).map(|n| (n * 7 + n / 4096 * 13) as u8).collect();
    let header =
        format!(r#"{{"w":{{"dtype":"U8","shape":[{BYTES}],"data_offsets":[0,{BYTES}]}}}}"#);
    let whole = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes].concat();
    std::fs::write(dir.join("model.safetensors"), whole).unwrap();
    (Weights::find(dir).unwrap(), bytes)
}

/// What a block of the fake holds: the descriptor is that of the memory itself.
fn held(block: &OwnedFd, bytes: usize) -> Vec<u8> {
    let mut held = vec![0; bytes];
    assert_eq!(pread(block, &mut held, 0).unwrap(), bytes);
    held
}

fn uuids() -> Vec<String> {
    let driver = Driver::find().unwrap().expect("fake devices");
    assert_eq!((driver.gpus(), driver.memory().unwrap()), (2, 64 << 20));
    driver.uuids().unwrap()
}

#[tokio::test]
async fn images_are_copied_over_several_streams_into_any_blocks() {
    Machine::new(2, 64 << 20).run("arena::copies").await;
}

#[test]
#[ignore = "run by `images_are_copied_over_several_streams_into_any_blocks`"]
fn copies() {
    let (weights, expected) = weights(&state());
    // CUDA numbers them the other way round here; the ids decide.
    let uuids = uuids();
    let arena = Arena::with_blocks(&uuids, 12 * BLOCK + 5, BLOCK).unwrap();
    assert_eq!((arena.kind(), arena.blocks(), arena.block_bytes()), ("cuda", 12, BLOCK));
    let image = arena.pin(&weights).unwrap();
    assert!(image.bytes() == expected);
    let exported = [0, 1].map(|gpu| arena.export(gpu).unwrap());
    let inherited = |fd: &&OwnedFd| !fcntl_getfd(fd).unwrap().contains(FdFlags::CLOEXEC);
    assert_eq!(exported.iter().flatten().filter(inherited).count(), 0);
    for (gpu, blocks) in [(1, [11, 2, 3, 7, 5, 0, 9, 8, 1]), (0, [8, 7, 6, 5, 4, 3, 2, 1, 0])] {
        // Each from a thread that the driver does not know yet.
        std::thread::scope(|scope| {
            let restored = scope.spawn(|| arena.restore(gpu, &*image, &blocks)).join().unwrap();
            restored.unwrap();
        });
        for (block, part) in blocks.iter().zip(expected.chunks(BLOCK as usize)) {
            let there = held(&exported[gpu as usize][*block], part.len());
            assert!(there == part, "block {block} of GPU {gpu}");
        }
    }
    assert!(arena.restore(2, &*image, &[0]).unwrap_err().to_string().contains("no GPU 2"));
}

#[tokio::test]
async fn an_arena_that_cannot_be_made_leaves_nothing() {
    Machine::new(2, 64 << 20).run("arena::refusals").await;
}

#[test]
#[ignore = "run by `an_arena_that_cannot_be_made_leaves_nothing`"]
fn refusals() {
    let uuids = uuids();
    let one = &uuids[..1];
    let why = |arena: Result<Arena, MemoryError>| arena.expect_err("refused").to_string();
    assert!(why(Arena::with_blocks(one, 100 << 20, BLOCK)).contains("OUT_OF_MEMORY"));
    for call in ["cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess"] {
        // The second time that it is made, where it is made that often.
        let skip = u32::from(call == "cuMemCreate" || call == "cuMemMap");
        order(&format!("fail-{call}"), &format!("2 {skip}"));
        assert!(why(Arena::with_blocks(one, 4 * BLOCK, BLOCK)).contains("OUT_OF_MEMORY"), "{call}");
        assert!(!is_ordered(&format!("fail-{call}")), "{call} was made");
    }
    assert!(why(Arena::new(one, 100)).contains("are no block"));
    let unknown = ["GPU-00000000-0000-0000-0000-000000000000".to_owned()];
    assert!(why(Arena::with_blocks(&unknown, BLOCK, BLOCK)).contains("does not show"));
    // All of the device but the context: nothing is missing.
    Arena::with_blocks(one, (64 << 20) - crate::machine::CONTEXT, BLOCK).unwrap();
}

#[tokio::test]
async fn a_copy_that_fails_is_said() {
    Machine::new(2, 64 << 20).run("arena::failing_copies").await;
}

#[test]
#[ignore = "run by `a_copy_that_fails_is_said`"]
fn failing_copies() {
    let (weights, _) = weights(&state());
    let arena = Arena::with_blocks(&uuids(), 12 * BLOCK, BLOCK).unwrap();
    order("fail-cuMemHostAlloc", "2");
    let refused = arena.pin(&weights).err().expect("refused").to_string();
    assert!(refused.contains("cannot be pinned") && refused.contains("OUT_OF_MEMORY"), "{refused}");
    let image = arena.pin(&weights).unwrap();
    let blocks: Vec<usize> = (0..9).collect();
    order("ecc-0", "1");
    let failed = arena.restore(0, &*image, &blocks).unwrap_err().to_string();
    assert!(failed.contains("ECC_UNCORRECTABLE"), "{failed}");
    // Another GPU's copies are made.
    arena.restore(1, &*image, &blocks).unwrap();
    order("lost-1", "");
    assert!(arena.restore(1, &*image, &blocks).unwrap_err().to_string().contains("UNKNOWN"));
}
