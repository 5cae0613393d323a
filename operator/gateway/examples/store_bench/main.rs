//! How fast the durable buffer takes records, and how fast a killed gateway has them back.
//!
//! `store_bench [--records N] [--dir DIR]`: a process of its own writes N records of 256 KiB
//! into groups of 8, settles them, takes and acknowledges some batches, and is killed with
//! SIGKILL; the store is opened again and compared with what was answered. In the same run,
//! the same bytes appended to a plain file, and put into a key-value-separated fjall.

mod baseline;
mod child;

use std::collections::HashSet;
use std::error::Error;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use rollwright_gateway::store::{Store, StoreConfig};

use self::child::{GROUP, Plan};

/// Length of a record, bytes.
const RECORD: usize = 256 << 10;
/// Records without `--records`: half a gigabyte.
const DEFAULT: u64 = 2_000;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let (mut records, mut dir, mut child) = (DEFAULT, None, false);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--records" => records = value()?.parse()?,
            "--dir" => dir = Some(PathBuf::from(value()?)),
            "--child" => child = true,
            _ => return Err(format!("`{argument}` is not known: --records N, --dir DIR").into()),
        }
    }
    let dir = dir.unwrap_or_else(|| std::env::temp_dir().join("rollwright-store-bench"));
    let record = record();
    let plan = Plan { records: records.next_multiple_of(GROUP), record: &record };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    if child {
        return runtime.block_on(child::write(&dir, plan));
    }
    std::fs::create_dir_all(&dir)?;
    let outcome = runtime.block_on(run(&dir, plan));
    std::fs::remove_dir_all(&dir)?;
    outcome
}

/// Digits and commas, as a record has them.
fn record() -> Vec<u8> {
    let mut state = 1_u64;
    let digit = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        b"0123456789,"[(state % 11) as usize]
    };
    (0..RECORD).map(digit).collect()
}

async fn run(dir: &Path, plan: Plan<'_>) -> Outcome<()> {
    let records = plan.records;
    let megabytes = |records: u64| (records * RECORD as u64) as f64 / 1e6;
    let rate = |took: Duration| megabytes(records) / took.as_secs_f64();
    println!(
        "{records} records of {RECORD} bytes, {:.0} MB, in {}",
        megabytes(records),
        dir.display()
    );

    let bound = rate(baseline::plain(dir, plan.record, records)?);
    println!("plain file, append and fdatasync: {bound:.0} MB/s");
    let (wrote, opened) = baseline::fjall(dir, plan.record, records)?;
    let share = |mine: f64| 100.0 * mine / bound;
    println!(
        "fjall, key-value separated: {:.0} MB/s ({:.0} % of plain), opened in {:.3} s",
        rate(wrote),
        share(rate(wrote)),
        opened.as_secs_f64()
    );

    let path = dir.join("store");
    let (answered, acknowledged, took) = kill_when_done(&path, records)?;
    println!("store: {:.0} MB/s ({:.0} % of plain), then killed", rate(took), share(rate(took)));
    let began = Instant::now();
    let (store, recovered) = Store::open(StoreConfig::new(&path)).await?;
    println!("recovered in {:.3} s", began.elapsed().as_secs_f64());

    let groups = recovered.settled.iter().chain(&recovered.open);
    let found: Vec<_> = groups.flat_map(|group| &group.records).collect();
    let again = found.iter().filter(|meta| acknowledged.contains(&group_number(meta))).count();
    let held: HashSet<u64> = found.iter().map(|meta| number(meta)).collect();
    let lost = answered
        .iter()
        .filter(|number| !acknowledged.contains(&(*number / GROUP)) && !held.contains(number))
        .count();
    println!(
        "answered {}, acknowledged {} groups, lost {lost}, given again {again}",
        answered.len(),
        acknowledged.len()
    );
    if lost + again > 0 {
        return Err("the store lost or repeated records".into());
    }

    // As a batch of 512 is sent.
    let ids: Vec<_> = found.iter().take(512).map(|meta| meta.trajectory.clone()).collect();
    let began = Instant::now();
    let mut read = store.records(ids.clone());
    let mut bytes = 0;
    while let Some(record) = read.next().await {
        bytes += record?.len();
    }
    let rate = bytes as f64 / 1e6 / began.elapsed().as_secs_f64();
    println!("a batch of {} records read at {rate:.0} MB/s", ids.len());
    store.close().await;
    Ok(())
}

fn number(meta: &rollwright_gateway::store::RecordMeta) -> u64 {
    meta.trajectory.as_str().parse().unwrap_or(u64::MAX)
}

fn group_number(meta: &rollwright_gateway::store::RecordMeta) -> u64 {
    meta.group.as_str().parse().unwrap_or(u64::MAX)
}

/// Runs the writing process and kills it. Says which records were answered, which groups
/// acknowledged, and how long the writes took.
fn kill_when_done(dir: &Path, records: u64) -> Outcome<(Vec<u64>, HashSet<u64>, Duration)> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--child").arg("--records").arg(records.to_string()).arg("--dir").arg(dir);
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let out = child.stdout.take().ok_or("no output")?;
    let (mut answered, mut acknowledged, mut took) = (Vec::new(), HashSet::new(), None);
    let collect = |answered: &mut Vec<u64>, acknowledged: &mut HashSet<u64>| {
        for line in BufReader::new(out).lines() {
            let line = line?;
            let (word, value) = line.split_once(' ').ok_or("a line without a value")?;
            match word {
                "kept" => answered.push(value.parse()?),
                "acknowledged" => drop(acknowledged.insert(value.parse()?)),
                _ => return Ok(Some(Duration::from_secs_f64(value.parse()?))),
            }
        }
        Outcome::Ok(None)
    };
    let outcome = collect(&mut answered, &mut acknowledged).map(|value| took = value);
    child.kill()?;
    child.wait()?;
    outcome?;
    let took = took.ok_or("the writing process ended by itself")?;
    Ok((answered, acknowledged, took))
}
