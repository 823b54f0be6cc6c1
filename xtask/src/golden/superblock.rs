//! The fields of MD's superblock 1.2 and bitmap that the manifest of the golden images lists.
//!
//! Offsets are those of Linux's `md_p.h` and `md-bitmap.h`.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

/// Sector of a 1.2 superblock.
const SUPERBLOCK_SECTOR: usize = 8;
const MAGIC: u32 = 0xa92b_4efc;
const FEATURE_BITMAP: u32 = 1;
const FEATURE_RECOVERY_OFFSET: u32 = 2;
/// Slots that the manifest shows.
const ROLES_SHOWN: usize = 8;

/// What one member says.
pub struct Superblock {
    pub feature_map: u32,
    pub uuid: String,
    pub set_name: String,
    pub level: i32,
    pub layout: u32,
    /// Sectors used of each member.
    pub size: u64,
    pub chunk_sectors: u32,
    pub raid_disks: u32,
    pub data_offset: u64,
    /// Sectors of the member that are valid, if it isn't whole.
    pub recovery_offset: Option<u64>,
    pub events: u64,
    pub resync_offset: u64,
    dev_number: u32,
    roles: Vec<u16>,
    description: Value,
}

struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn array<const N: usize>(&self, at: usize) -> Result<[u8; N]> {
        let bytes = self.0.get(at..at + N).context("the member is too short")?;
        Ok(bytes.try_into()?)
    }

    fn u16(&self, at: usize) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array(at)?))
    }

    fn u32(&self, at: usize) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(at)?))
    }

    fn i32(&self, at: usize) -> Result<i32> {
        Ok(i32::from_le_bytes(self.array(at)?))
    }

    fn u64(&self, at: usize) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(at)?))
    }
}

impl Superblock {
    /// Reads the superblock of a whole member.
    pub fn read(member: &[u8]) -> Result<Self> {
        let at = SUPERBLOCK_SECTOR * 512;
        let bytes = Bytes(member.get(at..).context("the member is too short")?);
        ensure!(bytes.u32(0)? == MAGIC, "no superblock");
        let set_name: [u8; 32] = bytes.array(32)?;
        let set_name = String::from_utf8_lossy(&set_name).trim_end_matches('\0').to_owned();
        let roles: Vec<u16> = (0..bytes.u32(220)?)
            .map(|index| bytes.u16(256 + 2 * usize::try_from(index)?))
            .collect::<Result<_>>()?;
        let feature_map = bytes.u32(8)?;
        let recovery_offset = bytes.u64(152)?;
        Ok(Self {
            feature_map,
            uuid: hex(&bytes.array::<16>(16)?),
            set_name,
            level: bytes.i32(72)?,
            layout: bytes.u32(76)?,
            size: bytes.u64(80)?,
            chunk_sectors: bytes.u32(88)?,
            raid_disks: bytes.u32(92)?,
            data_offset: bytes.u64(128)?,
            recovery_offset: (feature_map & FEATURE_RECOVERY_OFFSET != 0).then_some(recovery_offset),
            events: bytes.u64(200)?,
            resync_offset: bytes.u64(208)?,
            dev_number: bytes.u32(160)?,
            description: describe(&bytes, &roles)?,
            roles,
        })
    }

    /// The slot of this member, or one of the special values.
    pub fn role(&self) -> Result<u16> {
        let index = usize::try_from(self.dev_number)?;
        self.roles.get(index).copied().context("its number is outside the table of roles")
    }

    /// The manifest's entry for this member.
    pub fn describe(&self) -> Value {
        self.description.clone()
    }
}

fn describe(bytes: &Bytes, roles: &[u16]) -> Result<Value> {
    let dev_number = bytes.u32(160)?;
    let role = roles.get(usize::try_from(dev_number)?).context("its number is outside the table of roles")?;
    let shown: Vec<String> = roles.iter().take(ROLES_SHOWN).map(|role| format!("{role:#06x}")).collect();
    let bitmap_offset = bytes.i32(96)?;
    let has_bitmap = bytes.u32(8)? & FEATURE_BITMAP != 0;
    let bitmap = has_bitmap.then(|| describe_bitmap(bytes, usize::try_from(bitmap_offset)? * 512));
    Ok(json!({
        "dev_number": dev_number,
        "role": format!("{role:#06x}"),
        "roles": shown,
        "events": bytes.u64(200)?,
        "feature_map": bytes.u32(8)?,
        "data_offset": bytes.u64(128)?,
        "data_size": bytes.u64(136)?,
        "super_offset": bytes.u64(144)?,
        "recovery_offset": bytes.u64(152)?,
        "devflags": bytes.array::<1>(184)?[0],
        "bitmap_offset": bitmap_offset,
        "ppl": Value::Null,
        "bblog": [bytes.i32(188)?, i32::from(bytes.u16(186)?), i32::from(bytes.array::<1>(185)?[0])],
        "sb_csum": format!("{:#010x}", bytes.u32(216)?),
        "badblocks": Value::Null,
        "bitmap": bitmap.transpose()?,
        "ppl_headers": Value::Null,
    }))
}

/// `at` counts from the superblock.
fn describe_bitmap(bytes: &Bytes, at: usize) -> Result<Value> {
    ensure!(bytes.u32(at)? == 0x6d74_6962, "no bitmap where the superblock places it");
    let chunk = bytes.u32(at + 52)?;
    let bits = (bytes.u64(at + 40)? * 512).div_ceil(u64::from(chunk));
    let mut set = Vec::new();
    for bit in 0..bits {
        let byte: [u8; 1] = bytes.array(at + 256 + usize::try_from(bit / 8)?)?;
        if byte[0] >> (bit % 8) & 1 == 1 {
            set.push(bit);
        }
    }
    Ok(json!({
        "version": bytes.u32(at + 4)?,
        "uuid_ok": bytes.array::<16>(at + 8)? == bytes.array::<16>(16)?,
        "events": bytes.u64(at + 24)?,
        "events_cleared": bytes.u64(at + 32)?,
        "sync_size": bytes.u64(at + 40)?,
        "state": bytes.u32(at + 48)?,
        "chunksize": chunk,
        "daemon_sleep": bytes.u32(at + 56)?,
        "write_behind": bytes.u32(at + 60)?,
        "sectors_reserved": bytes.u32(at + 64)?,
        "nodes": bytes.u32(at + 68)?,
        "nbits": bits,
        "set": set,
    }))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}
