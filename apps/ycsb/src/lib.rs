//! What YCSB's core workloads ask for, apart from RocksDB: so its tests need no library of Debian's.
#![forbid(unsafe_code)]

pub mod generator;
