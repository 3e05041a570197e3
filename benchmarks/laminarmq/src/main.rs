// The workloads of benchmarks/log.py on laminarmq's tokio backend: append n values, then read them all in order.
//
// Its own criterion benches time one pass whatever the number of iterations they were asked for, so their rates mislead;
// here each pass is timed by itself. Nothing is ever synced, as there. A line for each: value bytes, values, seconds to
// append and to read, CPU seconds to append and to read, values read (the tail that its writer buffers is missing from
// a read right after).

use std::{convert::Infallible, ops::Deref, time::Instant};

use futures_lite::{stream, StreamExt};
use laminarmq::{
    common::{cache::NoOpCache, serde_compat::bincode},
    storage::{
        commit_log::{
            segmented_log::{segment::Config as SegmentConfig, Config, MetaWithIdx, SegmentedLog},
            CommitLog, Record,
        },
        impls::{
            common::DiskBackedSegmentStorageProvider,
            tokio::storage::std_random_read::{StdRandomReadFileStorage, StdRandomReadFileStorageProvider},
        },
        AsyncConsume,
    },
};

const SEGMENT_BYTES: u64 = 10_000_000;

const CONFIG: Config<u32, u64> = Config {
    segment_config: SegmentConfig {
        max_store_size: SEGMENT_BYTES,
        max_store_overflow: SEGMENT_BYTES / 2,
        max_index_size: SEGMENT_BYTES,
    },
    initial_index: 0,
    num_index_cached_read_segments: None,
};

/// What all threads of this process have used of the processors.
fn cpu_seconds() -> f64 {
    let mut used = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut used) };
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

async fn run(directory: &str, value_bytes: usize, values: usize) {
    let provider = DiskBackedSegmentStorageProvider::<_, _, u32>::with_storage_directory_path_and_provider(
        directory,
        StdRandomReadFileStorageProvider,
    )
    .unwrap();
    let mut log = SegmentedLog::<
        StdRandomReadFileStorage,
        (),
        crc32fast::Hasher,
        u32,
        u64,
        bincode::BinCode,
        _,
        NoOpCache<usize, ()>,
    >::new(CONFIG, provider)
    .await
    .unwrap();
    let value = vec![b'x'; value_bytes];

    let (start, start_cpu) = (Instant::now(), cpu_seconds());
    for _ in 0..values {
        let record = Record {
            metadata: MetaWithIdx { metadata: (), index: None },
            value: stream::iter(std::iter::once(Ok::<&[u8], Infallible>(value.deref()))),
        };
        log.append(record).await.unwrap();
    }
    let (append, append_cpu) = (start.elapsed(), cpu_seconds() - start_cpu);

    let (start, start_cpu) = (Instant::now(), cpu_seconds());
    let read = log.stream_unbounded().count().await;
    let (reading, reading_cpu) = (start.elapsed(), cpu_seconds() - start_cpu);

    let (append, reading) = (append.as_secs_f64(), reading.as_secs_f64());
    println!("{value_bytes} {values} {append} {reading} {append_cpu} {reading_cpu} {read}");
    log.remove().await.unwrap();
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let directory = format!("{}/laminarmq", arguments[1]);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    for workload in &arguments[2..] {
        let (value_bytes, values) = workload.split_once('x').unwrap();
        runtime.block_on(run(&directory, value_bytes.parse().unwrap(), values.parse().unwrap()));
        let _ = std::fs::remove_dir_all(&directory);
    }
}
