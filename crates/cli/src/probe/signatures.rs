//! The marks by which file systems, partition tables and volume managers are known.
//!
//! Each is a fact of its format: some bytes at some place. A device is *not* known to be empty because
//! nothing of this is found.

use std::ops::Range;

use pinstripe_control::text::printable;

use super::{Finding, ProbeError, Probed};

/// How an identity is written.
#[derive(Clone, Copy)]
enum UuidForm {
    /// 16 bytes, in order.
    Bytes,
    /// 16 bytes, the first three groups little-endian, as GPT has it.
    Guid,
    /// Text, NUL padded, of at most so many bytes.
    Text(usize),
}

/// A mark at a fixed place. Offsets are bytes from the beginning of the device.
struct Signature {
    what: &'static str,
    at: u64,
    magic: &'static [u8],
    uuid: Option<(u64, UuidForm)>,
    /// Offset, and bytes at most.
    name: Option<(u64, usize)>,
}

const fn plain(what: &'static str, at: u64, magic: &'static [u8]) -> Signature {
    Signature { what, at, magic, uuid: None, name: None }
}

const STRATIS: &[u8] = b"!Stra0tis\x86\xff\x02^Arh";

const SIGNATURES: &[Signature] = &[
    Signature {
        what: "an xfs file system",
        at: 0,
        magic: b"XFSB",
        uuid: Some((32, UuidForm::Bytes)),
        name: Some((108, 12)),
    },
    Signature {
        what: "a btrfs file system",
        at: 65536 + 64,
        magic: b"_BHRfS_M",
        uuid: Some((65536 + 32, UuidForm::Bytes)),
        name: Some((65536 + 0x12b, 256)),
    },
    Signature {
        what: "a LUKS encrypted volume",
        at: 0,
        magic: b"LUKS\xba\xbe",
        uuid: Some((168, UuidForm::Text(40))),
        name: None,
    },
    Signature {
        what: "an f2fs file system",
        at: 1024,
        magic: &[0x10, 0x20, 0xf5, 0xf2],
        uuid: Some((1024 + 108, UuidForm::Bytes)),
        name: None,
    },
    plain("a bcache device", 4096 + 24, &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65]),
    plain("a bcachefs file system", 4096 + 24, &[0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9, 0xd9, 0x6a]),
    plain("a Ceph BlueStore device", 0, b"bluestore block device"),
    // In either copy a checksum comes before the magic.
    plain("a Stratis pool member", 512 + 4, STRATIS),
    plain("the second header of a Stratis pool member", 4608 + 4, STRATIS),
    plain("a VDO volume", 0, b"dmvdo001"),
    plain("an LVM1 physical volume", 0, b"HM\x01\0"),
    plain("an LVM1 physical volume", 0, b"HM\x02\0"),
    plain("a dm-integrity device", 0, b"integrt\0"),
    plain("a dm-verity hash device", 0, b"verity\0\0"),
    plain("a snapshot of device mapper", 0, b"SnAp"),
    plain("an Oracle ASM disk", 32, b"ORCLDISK"),
    plain("a VMFS volume member", 1 << 20, &[0x0d, 0xd0, 0x01, 0xc0]),
    plain("a VMFS file system", 2 << 20, &[0x5e, 0xf1, 0xab, 0x2f]),
    plain("a BitLocker encrypted volume", 3, b"-FVE-FS-"),
    plain("a ReFS file system", 3, b"ReFS\0\0\0\0"),
    plain("an APFS container", 32, b"NXSB"),
    plain("an HFS+ file system", 1024, b"H+\0\x04"),
    plain("an HFSX file system", 1024, b"HX\0\x05"),
    plain("a ReiserFS file system", 8192 + 52, b"ReIsErFs"),
    plain("a ReiserFS file system", 65536 + 52, b"ReIsErFs"),
    plain("a ReiserFS file system", 65536 + 52, b"ReIsEr2Fs"),
    plain("a ReiserFS file system", 65536 + 52, b"ReIsEr3Fs"),
    plain("a Reiser4 file system", 65536, b"ReIsEr4"),
    plain("a JFS file system", 32768, b"JFS1"),
    // In the second block, whatever a block is.
    plain("an OCFS2 file system", 1024, b"OCFSV2"),
    plain("an OCFS2 file system", 2048, b"OCFSV2"),
    plain("an OCFS2 file system", 4096, b"OCFSV2"),
    plain("an OCFS2 file system", 8192, b"OCFSV2"),
    plain("a GFS or GFS2 file system", 65536, &[0x01, 0x16, 0x19, 0x70]),
    // Revision 2.0 before the two bytes of the magic, which alone are too few.
    plain("a NILFS2 file system", 1024, &[2, 0, 0, 0, 0, 0, 0x34, 0x34]),
    plain("a UFS file system", 8192 + 0x55c, &[0x54, 0x19, 0x01, 0x00]),
    plain("a UFS file system", 65536 + 0x55c, &[0x19, 0x01, 0x54, 0x19]),
    plain("a VxFS file system", 1024, &[0xf5, 0xfc, 0x01, 0xa5]),
    plain("a UDF file system", 32769, b"BEA01"),
    plain("a cramfs file system", 0, &[0x45, 0x3d, 0xcd, 0x28]),
    plain("a romfs file system", 0, b"-rom1fs-"),
    plain("a zonefs file system", 0, b"SFOZ"),
    plain("an NTFS file system", 3, b"NTFS    "),
    plain("an exFAT file system", 3, b"EXFAT   "),
    plain("a FAT file system", 54, b"FAT12   "),
    plain("a FAT file system", 54, b"FAT16   "),
    plain("a FAT file system", 82, b"FAT32   "),
    plain("an ISO 9660 file system", 32769, b"CD001"),
    plain("a squashfs file system", 0, b"hsqs"),
    plain("an erofs file system", 1024, &[0xe2, 0xe1, 0xf5, 0xe0]),
];

/// A device on which marks are searched for.
struct Searched<'a> {
    device: &'a Probed,
    /// It holds a whole superblock of MD.
    is_member: bool,
}

impl Searched<'_> {
    fn size(&self) -> u64 {
        self.device.size()
    }

    /// See [`Probed::read`]. Where the medium fails, a member has no mark: in most cases its array's data is
    /// there, and because of a sector of that it is no less a member.
    fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, ProbeError> {
        match self.device.read(offset, length) {
            Err(error) if self.is_member && error.is_of_medium() => Ok(Vec::new()),
            read => read,
        }
    }
}

/// Everything that is known to us on `device`, which is a member of an array or not.
pub fn find(device: &Probed, is_member: bool) -> Result<Vec<Finding>, ProbeError> {
    let device = &Searched { device, is_member };
    let mut found = Vec::new();
    for signature in SIGNATURES {
        if has(device, signature.at, signature.magic)? {
            found.push(describe(device, signature)?);
        }
    }
    found.extend(ext(device)?);
    found.extend(minix(device)?);
    found.extend(swap(device)?);
    found.extend(lvm(device)?);
    found.extend(zfs(device)?);
    found.extend(md_0_90(device)?);
    found.extend(at_end(device)?);
    let has_boot_sector = found.iter().any(|finding| finding.mark.start < 512);
    found.extend(partition_table(device, has_boot_sector)?);
    Ok(found)
}

fn has(device: &Searched<'_>, at: u64, magic: &[u8]) -> Result<bool, ProbeError> {
    Ok(device.read(at, magic.len())? == magic)
}

fn mark(at: u64, magic: &[u8]) -> Range<u64> {
    at..at + magic.len() as u64
}

fn finding(what: impl Into<String>, mark: Range<u64>) -> Finding {
    Finding { what: what.into(), name: None, uuid: None, mark, is_old_md: false }
}

fn describe(device: &Searched<'_>, signature: &Signature) -> Result<Finding, ProbeError> {
    let uuid = match signature.uuid {
        Some((at, form)) => uuid(device, at, form)?,
        None => None,
    };
    let name = match signature.name {
        Some((at, length)) => text(&device.read(at, length)?),
        None => None,
    };
    Ok(Finding { name, uuid, ..finding(signature.what, mark(signature.at, signature.magic)) })
}

/// Text up to its first NUL; `None` if there is none.
fn text(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let text = printable(String::from_utf8_lossy(&bytes[..end]).trim_end());
    (!text.is_empty()).then_some(text)
}

fn uuid(device: &Searched<'_>, at: u64, form: UuidForm) -> Result<Option<String>, ProbeError> {
    if let UuidForm::Text(length) = form {
        return Ok(text(&device.read(at, length)?));
    }
    let mut bytes = device.read(at, 16)?;
    if bytes.len() < 16 || bytes.iter().all(|&byte| byte == 0) {
        return Ok(None);
    }
    if let UuidForm::Guid = form {
        bytes[..4].reverse();
        bytes[4..6].reverse();
        bytes[6..8].reverse();
    }
    Ok(Some(dashed(&bytes)))
}

/// 8-4-4-4-12 hexadecimal digits.
fn dashed(bytes: &[u8]) -> String {
    let digit = |(index, byte): (usize, &u8)| {
        let dash = if matches!(index, 4 | 6 | 8 | 10) { "-" } else { "" };
        format!("{dash}{byte:02x}")
    };
    bytes.iter().enumerate().map(digit).collect()
}

fn little_u32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_le_bytes(*word))
}

/// ext2, ext3 and ext4 have one magic number; what they are follows from their features.
fn ext(device: &Searched<'_>) -> Result<Option<Finding>, ProbeError> {
    const SUPERBLOCK: u64 = 1024;
    const COMPATIBLE_JOURNAL: u32 = 0x4;
    /// Extents, 64 bit, flexible block groups, and more that only ext4 has.
    const INCOMPATIBLE_EXT4: u32 = 0x40 | 0x80 | 0x200 | 0x2000 | 0x4000;
    let superblock = device.read(SUPERBLOCK, 1024)?;
    if superblock.get(56..58) != Some(&[0x53, 0xef]) {
        return Ok(None);
    }
    let name = if little_u32(&superblock, 0x60) & INCOMPATIBLE_EXT4 != 0 {
        "an ext4 file system"
    } else if little_u32(&superblock, 0x5c) & COMPATIBLE_JOURNAL != 0 {
        "an ext3 file system"
    } else {
        "an ext2 file system"
    };
    Ok(Some(Finding {
        name: superblock.get(0x78..0x88).and_then(text),
        uuid: uuid(device, SUPERBLOCK + 0x68, UuidForm::Bytes)?,
        ..finding(name, SUPERBLOCK + 56..SUPERBLOCK + 58)
    }))
}

/// A magic of two bytes says little. In a file system of either version the maps of inodes and zones have
/// blocks; ext may have these bytes there, too.
fn minix(device: &Searched<'_>) -> Result<Option<Finding>, ProbeError> {
    const SUPERBLOCK: u64 = 1024;
    const MAGICS: [u16; 4] = [0x137f, 0x138f, 0x2468, 0x2478];
    const MAGIC_3: u16 = 0x4d5a;
    let superblock = device.read(SUPERBLOCK, 64)?;
    let word = |at: usize| {
        superblock.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u16::from_le_bytes(*word))
    };
    let at = match (word(16), word(24)) {
        (magic, _) if MAGICS.contains(&magic) && word(4) > 0 && word(6) > 0 => 16,
        (_, MAGIC_3) if word(6) > 0 && word(8) > 0 => 24,
        _ => return Ok(None),
    };
    let is_ext = word(56) == 0xef53;
    Ok((!is_ext).then(|| finding("a minix file system", SUPERBLOCK + at..SUPERBLOCK + at + 2)))
}

/// Swap space has its magic at the end of the first page, whatever the page is. Where the system sleeps on
/// it, another one stands in its place.
fn swap(device: &Searched<'_>) -> Result<Option<Finding>, ProbeError> {
    const SPACE: &str = "swap space";
    const ASLEEP: &str = "swap space with a system that hibernates";
    let magics: [(&str, &[u8]); 6] = [
        (SPACE, b"SWAPSPACE2"),
        (SPACE, b"SWAP-SPACE"),
        (ASLEEP, b"S1SUSPEND"),
        (ASLEEP, b"S2SUSPEND"),
        (ASLEEP, b"ULSUSPEND"),
        (ASLEEP, b"LINHIB0001"),
    ];
    for page in [4096, 8192, 16384, 32768, 65536] {
        for (what, magic) in magics {
            let at = page - 10;
            if has(device, at, magic)? {
                return Ok(Some(Finding {
                    name: text(&device.read(1024 + 28, 16)?),
                    uuid: uuid(device, 1024 + 12, UuidForm::Bytes)?,
                    ..finding(what, mark(at, magic))
                }));
            }
        }
    }
    Ok(None)
}

/// An LVM2 label lies in one of the first four sectors.
fn lvm(device: &Searched<'_>) -> Result<Option<Finding>, ProbeError> {
    for at in [0, 512, 1024, 1536] {
        let label = device.read(at, 512)?;
        if label.starts_with(b"LABELONE") && label.get(24..32) == Some(b"LVM2 001") {
            let header = u64::from(little_u32(&label, 20));
            let uuid = text(&device.read(at + header, 32)?);
            return Ok(Some(Finding { uuid, ..finding("an LVM2 physical volume", at..at + 8) }));
        }
    }
    Ok(None)
}

/// ZFS keeps four labels; in each, a ring of uberblocks from 128 KiB on, in either byte order.
fn zfs(device: &Searched<'_>) -> Result<Option<Finding>, ProbeError> {
    const LABEL: u64 = 256 << 10;
    const RING: u64 = 128 << 10;
    const MAGIC: u64 = 0x00ba_b10c;
    let end = device.size() / LABEL * LABEL;
    let labels = [Some(0), Some(LABEL), end.checked_sub(2 * LABEL), end.checked_sub(LABEL)];
    for label in labels.into_iter().flatten() {
        let ring = device.read(label + RING, 128 << 10)?;
        let mut blocks = (0u64..).step_by(1024).zip(ring.chunks_exact(1024));
        let found =
            blocks.find(|(_, block)| block[..8] == MAGIC.to_le_bytes() || block[..8] == MAGIC.to_be_bytes());
        if let Some((offset, _)) = found {
            let at = label + RING + offset;
            return Ok(Some(finding("a ZFS pool member", at..at + 8)));
        }
    }
    Ok(None)
}

/// MD's old metadata lies in the last whole 64 KiB but one, in the byte order of the host that wrote it.
fn md_0_90(device: &Searched<'_>) -> Result<Option<Finding>, ProbeError> {
    const RESERVED: u64 = 64 << 10;
    const MAGIC: u32 = 0xa92b_4efc;
    let Some(at) = (device.size() / RESERVED * RESERVED).checked_sub(RESERVED) else { return Ok(None) };
    let superblock = device.read(at, 64)?;
    let magic = superblock.get(..4);
    let big_endian = magic == Some(&MAGIC.to_be_bytes());
    // With version 1 the same magic may stand here; it says so in its second word.
    let major = little_u32(&superblock, 4);
    if !(big_endian || magic == Some(&MAGIC.to_le_bytes())) || major != 0 {
        return Ok(None);
    }
    let uuid = [20, 52, 56, 60].map(|at| {
        let word = little_u32(&superblock, at);
        if big_endian { word.swap_bytes() } else { word }
    });
    let uuid = uuid.map(|word| format!("{word:08x}")).join(":");
    let found = finding("an MD superblock of version 0.90", at..at + 4);
    Ok(Some(Finding { uuid: Some(uuid), is_old_md: true, ..found }))
}

/// RAID metadata of firmware lies in the last sectors, that of DRBD in the last 4 KiB.
fn at_end(device: &Searched<'_>) -> Result<Option<Finding>, ProbeError> {
    const DRBD: u64 = 4096 - 60;
    let candidates: [(&str, u64, &[u8]); 5] = [
        ("DRBD metadata", DRBD, &[0x83, 0x74, 0x02, 0x6b]),
        ("DRBD metadata", DRBD, &[0x83, 0x74, 0x02, 0x6c]),
        ("DRBD metadata", DRBD, &[0x83, 0x74, 0x02, 0x6d]),
        ("DDF firmware RAID metadata", 512, &[0xde, 0x11, 0xde, 0x11]),
        ("Intel firmware RAID metadata", 1024, b"Intel Raid ISM Cfg Sig. "),
    ];
    for (what, from_end, magic) in candidates {
        if let Some(at) = device.size().checked_sub(from_end)
            && has(device, at, magic)?
        {
            return Ok(Some(finding(what, mark(at, magic))));
        }
    }
    Ok(None)
}

/// A GPT at either end with the MBR that protects it, by which tools believe the one end if the other is
/// gone; or else an MBR. The boot sector of a file system looks like an MBR, so it counts only alone.
fn partition_table(device: &Searched<'_>, has_boot_sector: bool) -> Result<Vec<Finding>, ProbeError> {
    const GPT: &[u8] = b"EFI PART";
    let ends = [512, 4096].map(|block| device.size().checked_sub(block));
    let places = [Some(512), Some(4096)].into_iter().chain(ends).flatten();
    let mut found = Vec::new();
    for at in places {
        if has(device, at, GPT)? && found.iter().all(|other: &Finding| other.mark.start != at) {
            let uuid = uuid(device, at + 56, UuidForm::Guid)?;
            let what = if found.is_empty() {
                "a GPT partition table"
            } else {
                "the backup of a GPT partition table"
            };
            found.push(Finding { uuid, ..finding(what, mark(at, GPT)) });
        }
    }
    if !has_boot_sector && is_mbr(&device.read(0, 512)?) {
        let what = if found.is_empty() { "an MBR partition table" } else { "the MBR before a GPT" };
        found.push(finding(what, 510..512));
    }
    Ok(found)
}

/// The two magic bytes alone are in every boot sector, so at least one entry must be sound and in use.
fn is_mbr(sector: &[u8]) -> bool {
    let sound = |entry: &[u8]| matches!(entry[0], 0 | 0x80);
    let in_use = |entry: &[u8]| entry[4] != 0 && little_u32(entry, 12) != 0;
    let Some(entries) = sector.get(446..510) else { return false };
    let entries = entries.chunks_exact(16);
    sector[510..] == [0x55, 0xaa] && entries.clone().all(sound) && entries.clone().any(in_use)
}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::unix::fs::FileExt};

    use super::*;

    fn device(size: u64, parts: &[(u64, &[u8])]) -> (tempfile::NamedTempFile, Probed) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.flush().unwrap();
        file.as_file().set_len(size).unwrap();
        for (at, bytes) in parts {
            file.as_file().write_all_at(bytes, *at).unwrap();
        }
        let probed = Probed::open(file.path()).unwrap();
        (file, probed)
    }

    fn found(size: u64, parts: &[(u64, &[u8])]) -> Vec<String> {
        let (_file, device) = device(size, parts);
        find(&device, false).unwrap().iter().map(ToString::to_string).collect()
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn an_empty_device_holds_nothing_however_small_it_is() {
        for size in [0, 1, 511, 512, 4096, 65536, MIB] {
            assert_eq!(found(size, &[]), Vec::<String>::new(), "{size}");
        }
    }

    #[test]
    fn each_kind_of_ext_is_told_apart_and_named() {
        let magic: (u64, &[u8]) = (1024 + 56, &[0x53, 0xef]);
        assert_eq!(found(MIB, &[magic]), ["an ext2 file system"]);
        assert_eq!(found(MIB, &[magic, (1024 + 0x5c, &[4])]), ["an ext3 file system"]);
        let named = [magic, (1024 + 0x60, &[0x40][..]), (1024 + 0x78, b"data"), (1024 + 0x68, &[0x11; 16])];
        assert_eq!(
            found(MIB, &named),
            ["an ext4 file system \"data\" (uuid 11111111-1111-1111-1111-111111111111)"]
        );
    }

    #[test]
    fn every_signature_of_the_table_is_found_at_its_place() {
        for signature in SIGNATURES {
            let found = found(4 * MIB, &[(signature.at, signature.magic)]);
            assert_eq!(found.len(), 1, "{}: {found:?}", signature.what);
            assert!(found[0].starts_with(signature.what), "{}: {found:?}", signature.what);
        }
    }

    #[test]
    fn swap_lvm_zfs_and_old_md_are_found() {
        assert_eq!(found(MIB, &[(4086, b"SWAPSPACE2")]), ["swap space"]);
        for magic in ["S1SUSPEND\0", "S2SUSPEND\0", "ULSUSPEND\0", "LINHIB0001"] {
            for page in [4096, 65536] {
                let found = found(MIB, &[(page - 10, magic.as_bytes())]);
                assert_eq!(found, ["swap space with a system that hibernates"], "{magic} {page}");
            }
        }
        let label = [b"LABELONE\0\0\0\0\0\0\0\0\0\0\0\0\x20\0\0\0LVM2 001".as_slice(), b"abcdef"].concat();
        assert_eq!(found(MIB, &[(512, &label)]), ["an LVM2 physical volume (uuid abcdef)"]);
        let uberblock = 0x00ba_b10c_u64.to_be_bytes();
        assert_eq!(found(MIB, &[((128 << 10) + 3072, &uberblock)]), ["a ZFS pool member"]);
        assert_eq!(found(MIB, &[(MIB - (128 << 10), &uberblock)]), ["a ZFS pool member"]);
        let old = 0xa92b_4efc_u32.to_le_bytes();
        assert_eq!(
            found(MIB, &[(MIB - (64 << 10), &old)]),
            ["an MD superblock of version 0.90 (uuid 00000000:00000000:00000000:00000000)"]
        );
    }

    /// The beginnings of such devices as their own programs write them.
    #[test]
    fn what_is_neither_a_usual_file_system_nor_empty_is_found() {
        let bluestore = b"bluestore block device\n7f0c6e5e-1111-2222-3333-444455556666\n";
        let devices: [(&str, u64, &[u8]); 16] = [
            ("a BitLocker encrypted volume", 0, b"\xeb\x58\x90-FVE-FS-\x00\x02\x08"),
            ("a Ceph BlueStore device", 0, bluestore),
            ("a Stratis pool member", 512, b"\x01\x02\x03\x04!Stra0tis\x86\xff\x02^\x41rh"),
            ("a dm-integrity device", 0, b"integrt\0\x05"),
            ("a VDO volume", 0, b"dmvdo001\x05\0\0\0"),
            ("an LVM1 physical volume", 0, b"HM\x02\0\0\0\0\0"),
            ("a ReiserFS file system", 65536 + 0x34, b"ReIsEr2Fs\0"),
            ("a JFS file system", 0x8000, b"JFS1\x02\0\0\0"),
            ("an OCFS2 file system", 8192, b"OCFSV2\0\0"),
            ("a GFS or GFS2 file system", 0x10000, b"\x01\x16\x19\x70\0\0\0\x01"),
            ("a NILFS2 file system", 0x400, b"\x02\0\0\0\0\0\x34\x34\x18\x01"),
            ("a UDF file system", 0x8000, b"\0BEA01\x01\0"),
            ("an HFS+ file system", 0x400, b"H+\0\x04\x80\0\x01\0"),
            ("an APFS container", 0x20, b"NXSB\0\x10\0\0"),
            ("a ReFS file system", 0, b"\0\0\0ReFS\0\0\0\0"),
            ("a VMFS volume member", 0x10_0000, b"\x0d\xd0\x01\xc0"),
        ];
        for (what, at, bytes) in devices {
            assert_eq!(found(4 * MIB, &[(at, bytes)]), [what]);
        }
    }

    #[test]
    fn minix_is_found_by_more_than_its_two_bytes() {
        for magic in [0x137f_u16, 0x138f, 0x2468, 0x2478] {
            let magic = magic.to_le_bytes();
            let maps: (u64, &[u8]) = (1024 + 4, &[1, 0, 1, 0]);
            assert_eq!(found(MIB, &[(1024 + 16, &magic), maps]), ["a minix file system"]);
            assert_eq!(found(MIB, &[(1024 + 16, &magic)]), Vec::<String>::new());
            let ext: (u64, &[u8]) = (1024 + 56, &[0x53, 0xef]);
            assert_eq!(found(MIB, &[(1024 + 16, &magic), maps, ext]), ["an ext2 file system"]);
        }
        let third: [(u64, &[u8]); 2] = [(1024 + 6, &[1, 0, 1, 0]), (1024 + 24, &[0x5a, 0x4d])];
        assert_eq!(found(MIB, &third), ["a minix file system"]);
        assert_eq!(found(MIB, &third[1..]), Vec::<String>::new());
    }

    #[test]
    fn the_metadata_of_drbd_is_found_at_the_end() {
        for last in [0x6b, 0x6c, 0x6d] {
            assert_eq!(found(MIB, &[(MIB - 4096 + 60, &[0x83, 0x74, 0x02, last])]), ["DRBD metadata"]);
        }
    }

    #[test]
    fn partition_tables_are_found_at_both_ends() {
        let protective: &[u8] = &[0, 0, 2, 0, 0xee, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0xff, 7, 0, 0];
        let mbr = [(446, protective), (510, &[0x55, 0xaa][..])];
        assert_eq!(found(MIB, &mbr), ["an MBR partition table"]);
        assert_eq!(found(MIB, &[(512, b"EFI PART")]), ["a GPT partition table"]);
        let both = [mbr[0], mbr[1], (512, b"EFI PART".as_slice())];
        assert_eq!(found(MIB, &both), ["a GPT partition table", "the MBR before a GPT"]);
        assert_eq!(found(MIB, &[(MIB - 512, b"EFI PART")]), ["a GPT partition table"]);
        assert_eq!(
            found(MIB, &[(510, &[0x55, 0xaa])]),
            Vec::<String>::new(),
            "a boot sector without partitions"
        );
    }
}
