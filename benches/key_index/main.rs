//! What a key costs, in the publisher's own index and in other stores: adding it,
//! looking for one that is there and for one that is not, memory, start-up.
//!
//! ```sh
//! cargo bench --no-default-features --features publisher,bench-stores --bench key_index
//! … -- --keys 100000 --stores own,redb
//! ```
//! Each line is measured in processes of its own, so that peak memory is the store's.

mod stores;

use std::{
    env, fs,
    path::Path,
    process::{Command, ExitCode},
    sync::Arc,
    time::{Duration, Instant},
};

use counterfoil::publisher::receipts::{self, FLUSH_ROWS, Hash};
use stores::{NAMES, Outcome, Own, event, key, open};

/// Events that the appender commits together.
const GROUP: u64 = 128;
/// Measured events and look-ups: a few steps of persisting are among them.
const MEASURED: u64 = 4 * FLUSH_ROWS as u64;
const SUBJECTS: u64 = 1_000;
/// A store that takes longer to be filled is given up.
const PATIENCE: Duration = Duration::from_secs(600);
/// What is printed of it.
const GIVEN_UP: &str = "given up";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["child", step, store, keys, dir] => child(step, store, keys, Path::new(dir)),
        _ => table(&words),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the table, a line at a time.
fn table(words: &[&str]) -> Outcome<()> {
    let option = |name: &str, default: &str| -> String {
        let at = words.iter().position(|word| *word == name);
        at.and_then(|at| words.get(at + 1)).map_or(default, |value| value).to_owned()
    };
    let (sizes, names) = (option("--keys", "100000,1000000,10000000"), NAMES.join(","));
    let names = option("--stores", &names);
    println!("{}\n{}\n", processor(), memory());
    println!(
        "| live keys | store | insert, µs | look-up absent, µs | look-up present, µs | \
         peak memory, MiB | start-up, ms | after it, MiB | disk, MiB |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut notes = Vec::new();
    for keys in sizes.split(',') {
        for store in names.split(',') {
            let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
            let filled = step("fill", store, keys, dir.path())?;
            if filled.starts_with(GIVEN_UP) {
                println!("| {keys} | {store} | {filled} | | | | | | |");
                continue;
            }
            let disk = bytes(dir.path())? >> 20;
            let opened = step("open", store, keys, dir.path())?;
            println!("| {keys} | {store} | {filled} | {opened} | {disk} |");
            if store == "own" {
                let forgotten = step("forget", store, keys, dir.path())?;
                notes.push(format!("own, {keys} keys: forgetting one costs {forgotten} µs"));
            }
        }
    }
    println!("\n{}", notes.join("\n"));
    Ok(())
}

/// Runs a step in a process of its own, and returns what it prints.
fn step(step: &str, store: &str, keys: &str, dir: &Path) -> Outcome<String> {
    let output =
        Command::new(env::current_exe()?).args(["child", step, store, keys]).arg(dir).output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("{step} {store} {keys}: {said}").into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

fn child(step: &str, store: &str, keys: &str, dir: &Path) -> Outcome<()> {
    let keys: u64 = keys.parse()?;
    match step {
        "fill" => fill(store, keys, dir),
        "open" => start(store, keys, dir),
        _ => forget(keys, dir),
    }
}

/// Adds keys up to the number, the last of them measured; then looks some up.
fn fill(store: &str, keys: u64, dir: &Path) -> Outcome<()> {
    let mut store = open(store, dir, 0)?;
    let subjects: Arc<[Hash]> =
        (0..SUBJECTS).map(|n| receipts::hash(&format!("subject-{n}"))).collect();
    let began = Instant::now();
    let measured_from = keys.saturating_sub(MEASURED);
    let mut inserting = 0;
    for first in (0..keys).step_by(GROUP as usize) {
        if began.elapsed() > PATIENCE {
            print!("{GIVEN_UP} after {} s with {first} keys", PATIENCE.as_secs());
            return Ok(());
        }
        let group: Vec<_> = (first..keys.min(first + GROUP)).map(|n| event(n, &subjects)).collect();
        let start = Instant::now();
        store.insert(&group)?;
        if first >= measured_from {
            inserting += start.elapsed().as_nanos();
        }
    }
    let insert = inserting as f64 / 1_000.0 / (keys - measured_from) as f64;
    // Every so many-th key, all over the store, in an order that is as good as random.
    let stride = (keys / 3) * 2 + 1;
    let absent = looking_up(&mut *store, |n| key(keys + n), 0)?;
    let present = looking_up(&mut *store, |n| key(n * stride % keys), GROUP)?;
    store.close()?;
    print!("{insert:.2} | {absent:.2} | {present:.2} | {}", peak_mib()?);
    Ok(())
}

/// Microseconds of a look-up in groups, of which so many are found in each.
fn looking_up(
    store: &mut dyn stores::Keys,
    nth: impl Fn(u64) -> Hash,
    expected: u64,
) -> Outcome<f64> {
    let mut looking = 0;
    for first in (0..MEASURED).step_by(GROUP as usize) {
        let keys: Vec<_> = (first..first + GROUP).map(&nth).collect();
        let start = Instant::now();
        let found = store.find(&keys)?;
        looking += start.elapsed().as_nanos();
        if found as u64 != expected {
            return Err(format!("{found} of {GROUP} keys found, {expected} expected").into());
        }
    }
    Ok(looking as f64 / 1_000.0 / MEASURED as f64)
}

/// Opens a store that is there, until it has answered once.
fn start(store: &str, keys: u64, dir: &Path) -> Outcome<()> {
    let start = Instant::now();
    let mut store = open(store, dir, keys)?;
    let found = store.find(&[key(keys / 2)])?;
    let elapsed = start.elapsed().as_millis();
    if found != 1 {
        return Err("a key was lost".into());
    }
    print!("{elapsed} | {}", peak_mib()?);
    Ok(())
}

/// Lets all keys of the own store expire.
fn forget(keys: u64, dir: &Path) -> Outcome<()> {
    let mut own = Own::open(dir, keys)?;
    let start = Instant::now();
    own.forget_all(i64::MAX)?;
    print!("{:.2}", start.elapsed().as_nanos() as f64 / 1_000.0 / keys as f64);
    Ok(())
}

/// The most memory that this process has had.
fn peak_mib() -> Outcome<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let peak =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next());
    Ok(peak.ok_or("no VmHWM in /proc/self/status")?.parse::<u64>()?.div_ceil(1024))
}

/// Bytes of the files below a directory.
fn bytes(dir: &Path) -> Outcome<u64> {
    let mut sum = 0;
    for file in fs::read_dir(dir)? {
        let file = file?;
        let about = file.metadata()?;
        sum += if about.is_dir() { bytes(&file.path())? } else { about.len() };
    }
    Ok(sum)
}

fn processor() -> String {
    let about = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let names: Vec<_> = about
        .lines()
        .filter_map(|line| line.strip_prefix("model name")?.split(": ").nth(1))
        .collect();
    format!("{} × {}", names.len(), names.first().unwrap_or(&"a processor"))
}

fn memory() -> String {
    let about = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib =
        about.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next());
    let kib = kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0);
    let system = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{} GiB of memory, Linux {}", kib >> 20, system.trim())
}
