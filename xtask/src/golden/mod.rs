//! `cargo xtask golden`: makes the golden images that the original set lacks, with mdadm in the VM.
//!
//! Same shape, same pattern and same manifest entries as the set (see `docs/formats.md` and its
//! `manifest.json`). The images are verified here by the address map of MD's documentation, written down once
//! more and apart from the engine's, before they become what the engine is measured by.

mod layout;
pub mod superblock;

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use self::layout::Layout;
use self::superblock::Superblock;
use crate::pattern::{self, Run};
use crate::vm::Lab;
use crate::vm::machine::{Machine, Outcome};
use crate::vm::members::{Geometry, MEMBER_BYTES, lines};

const GEOMETRIES: &[Geometry] = &[
    Geometry::new("r4-n4", 4, 4, 16, ""),
    Geometry::new("r5-right-asymmetric-n4", 5, 4, 16, "right-asymmetric"),
    Geometry::new("r5-parity-first-n4", 5, 4, 16, "parity-first"),
    Geometry::new("r6-ddf-N-continue-n5", 6, 5, 16, "ddf-N-continue"),
    Geometry::new("r6-right-symmetric-6-n5", 6, 5, 16, "right-symmetric-6"),
    Geometry::new("r6-parity-first-6-n5", 6, 5, 16, "parity-first-6"),
];

/// Blocks of 4 KiB of each array: three data members of 22528 sectors.
const ARRAY_BLOCKS: u64 = 8448;
const SECOND_WRITES: &[u64] = &[1, 2, 7, 18, 33, 34, 35, 64, 100, 101, 255, 300, 411, 500, 511, 639];

/// Makes the images and writes them with `manifest-extra.json` into `directory`.
pub fn make(root: &Path, directory: &Path) -> Result<()> {
    crate::packages::ensure()?;
    let lab = Lab::new(&root.join("target/vm"), "golden")?;
    let first = vec![Run::new(0..640, 1), Run::new(8384..ARRAY_BLOCKS, 1)];
    let second: Vec<Run> = SECOND_WRITES.iter().map(|block| Run::new(*block..block + 1, 2)).collect();
    let mut machine = Machine::new("golden", include_str!("../../vm/golden-create.sh"))
        .modules(&["raid456"])
        .variable("ARRAYS", &lines(GEOMETRIES))
        .variable("FIRST", &pattern::list(&first))
        .variable("SECOND", &pattern::list(&second));
    for geometry in GEOMETRIES {
        geometry.make_members(&lab)?;
        geometry.attach(&lab, &mut machine, &[]);
    }
    let outcome = lab.boot(machine)?;
    fs::create_dir_all(directory)?;
    let expected = [first, second].concat();
    let cases: Vec<Value> = GEOMETRIES
        .iter()
        .map(|geometry| case(&lab, &outcome, geometry, &expected, directory).context(geometry.name))
        .collect::<Result<_>>()?;
    let manifest = json!({
        "description": "Golden vectors that the original set lacks, of the same shape; made by `cargo xtask golden`.",
        "pattern": "as in manifest.json",
        "kernel": outcome.last("kernel")?,
        "mdadm": outcome.last("mdadm")?,
        "cases": cases,
    });
    fs::write(directory.join("manifest-extra.json"), serde_json::to_string_pretty(&manifest)? + "\n")?;
    println!("{} images in {}", GEOMETRIES.len(), directory.display());
    Ok(())
}

/// Verifies one array, packs its image, and describes it.
fn case(
    lab: &Lab,
    outcome: &Outcome,
    geometry: &Geometry,
    expected: &[Run],
    directory: &Path,
) -> Result<Value> {
    let members: Vec<Vec<u8>> = (0..geometry.members)
        .map(|slot| Ok(fs::read(lab.directory.join(format!("{}-{slot}.img", geometry.name)))?))
        .collect::<Result<_>>()?;
    let superblocks: Vec<Superblock> =
        members.iter().map(|member| Superblock::read(member)).collect::<Result<_>>()?;
    let mismatches = said(outcome, "mismatch", geometry.name)?;
    ensure!(mismatches == "0", "the kernel counts {mismatches} mismatched sectors");
    let verified = verify(&members, &superblocks, expected)?;
    let file = format!("{}.img.zst", geometry.name);
    let file_bytes = pack(lab, geometry.name, &members.concat(), &directory.join(&file))?;
    let newest = superblocks.iter().max_by_key(|superblock| superblock.events).context("no members")?;
    Ok(json!({
        "name": geometry.name,
        "file": file,
        "file_bytes": file_bytes,
        "members": geometry.members,
        "member_bytes": vec![MEMBER_BYTES; members.len()],
        "state": "stopped",
        "create": said(outcome, "create", geometry.name)?,
        "post": "",
        "level": newest.level,
        "layout": newest.layout,
        "chunk_sectors": newest.chunk_sectors,
        "raid_disks": newest.raid_disks,
        "metadata": "1.2",
        "component_sectors": newest.size,
        "array_blocks4k": ARRAY_BLOCKS,
        "uuid": newest.uuid,
        "set_name": newest.set_name,
        "feature_map": newest.feature_map,
        "max_events": newest.events,
        "resync_offset": format!("{:#018x}", newest.resync_offset),
        "reshape": Value::Null,
        "expected": {
            "gen1": [[0, 640], [8384, ARRAY_BLOCKS]],
            "gen2": SECOND_WRITES,
        },
        "kernel_mismatch_cnt": 0,
        "verified": verified,
        "errors": [],
        "member_info": superblocks.iter().map(Superblock::describe).collect::<Vec<_>>(),
    }))
}

/// What the guest said about this array under this name.
fn said<'a>(outcome: &'a Outcome, name: &str, array: &str) -> Result<&'a str> {
    outcome
        .all(name)
        .into_iter()
        .find_map(|line| line.strip_prefix(array)?.strip_prefix(' '))
        .with_context(|| format!("the guest printed no {name:?} of {array}"))
}

/// Every block of the array must be the expected one, every row's P and Q must fit.
fn verify(members: &[Vec<u8>], superblocks: &[Superblock], expected: &[Run]) -> Result<Value> {
    let layout = Layout::new(superblocks)?;
    let mut written = 0;
    for block in 0..ARRAY_BLOCKS {
        let wanted = expected.iter().rev().find(|run| run.blocks.contains(&block));
        let generation = wanted.map_or(0, |run| run.generations[0]);
        written += u64::from(generation != 0);
        let found = layout.block(members, block);
        ensure!(found == pattern::render(block..block + 1, generation), "block {block} is not as written");
    }
    let rows = superblocks[0].size / 8;
    for row in 0..rows {
        layout.check_row(members, row).with_context(|| format!("row {row}"))?;
    }
    Ok(json!({
        "blocks_ok": written, "blocks_bad": 0, "blocks_missing": 0, "reconstructed": 0,
        "rows": rows, "p_bad": 0, "q_bad": 0,
    }))
}

/// Compresses the image as the set's are; its size.
fn pack(lab: &Lab, name: &str, image: &[u8], target: &Path) -> Result<u64> {
    let raw = lab.directory.join(format!("{name}.whole.img"));
    fs::write(&raw, image)?;
    let status = Command::new("zstd").args(["-q", "-19", "-f", "-o"]).arg(target).arg(&raw).status()?;
    if !status.success() {
        bail!("zstd failed on {}", raw.display());
    }
    fs::remove_file(raw)?;
    Ok(fs::metadata(target)?.len())
}
