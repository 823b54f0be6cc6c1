//! What a simulated disk holds: contents as reads see them, contents that are durable, and between the two
//! the versions of sectors that lie in a volatile cache.
//!
//! Per sector the medium holds the durable value, and the cache remembers every value that landed since, in
//! order. A real disk may have destaged any of them at any moment, so after a power loss the sector holds the
//! durable value or any one of those. Making a version durable drops it and the older ones: a cache never
//! destages an older value over a newer one. Writes survive whole, in part (cut at the tear unit) or not at
//! all, each on its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    rc::Rc,
};

use crate::{
    rng::{Rng, index, mix},
    trace::hash_of,
};

/// Bytes of a sector: the unit of everything here.
pub const SECTOR: u64 = 512;
const PAGE: usize = 4096;

/// Pages of a block, which exists once one of them does.
const BLOCK: usize = 512;

type Page = Option<Box<[u8; PAGE]>>;

/// Bytes that are zero until written, in pages that exist once touched: a disk may be far larger than what is
/// written of it.
#[derive(Clone)]
pub(crate) struct Image {
    /// In whole pages.
    size: u64,
    blocks: BTreeMap<usize, Box<[Page]>>,
}

impl Image {
    fn new(size: u64) -> Self {
        Self { size: size.next_multiple_of(PAGE as u64), blocks: BTreeMap::new() }
    }

    fn page(&self, number: usize) -> Option<&[u8; PAGE]> {
        self.blocks.get(&(number / BLOCK))?[number % BLOCK].as_deref()
    }

    /// The pages that exist, in bytes, ascending.
    pub(crate) fn pages(&self) -> impl Iterator<Item = Range<u64>> {
        self.numbered().map(|(number, _)| (number * PAGE) as u64..((number + 1) * PAGE) as u64)
    }

    fn numbered(&self) -> impl Iterator<Item = (usize, &[u8; PAGE])> {
        self.blocks.iter().flat_map(|(block, pages)| {
            let there = pages.iter().enumerate();
            there.filter_map(move |(page, bytes)| Some((block * BLOCK + page, bytes.as_deref()?)))
        })
    }

    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) {
        assert!(offset + bytes.len() as u64 <= self.size, "a read beyond the end of the disk");
        let (mut at, mut rest) = (index(offset), bytes);
        while !rest.is_empty() {
            let inside = at % PAGE;
            let (part, next) = rest.split_at_mut((PAGE - inside).min(rest.len()));
            match self.page(at / PAGE) {
                Some(page) => part.copy_from_slice(&page[inside..inside + part.len()]),
                None => part.fill(0),
            }
            at += part.len();
            rest = next;
        }
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        assert!(offset + bytes.len() as u64 <= self.size, "a write beyond the end of the disk");
        let (mut at, mut rest) = (index(offset), bytes);
        while !rest.is_empty() {
            let inside = at % PAGE;
            let (part, next) = rest.split_at((PAGE - inside).min(rest.len()));
            let number = at / PAGE;
            let block = self.blocks.entry(number / BLOCK).or_insert_with(|| vec![None; BLOCK].into());
            let page = block[number % BLOCK].get_or_insert_with(|| Box::new([0; PAGE]));
            page[inside..inside + part.len()].copy_from_slice(part);
            at += part.len();
            rest = next;
        }
    }

    fn hash(&self) -> u64 {
        self.numbered()
            .map(|(number, page)| mix(number as u64 ^ hash_of(&page[..])))
            .fold(0, u64::wrapping_add)
    }
}

/// A sector's value in the cache: part of the data of a write.
#[derive(Clone)]
pub(crate) struct Version {
    write: u64,
    data: Rc<[u8]>,
    /// Where in `data` it lies.
    at: u32,
}

impl Version {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.data[self.at as usize..self.at as usize + index(SECTOR)]
    }
}

/// What a power loss leaves of a cached write.
enum Fate {
    Whole,
    Nothing,
    /// The units in this range.
    Run(u64, u64),
    /// Each unit by a coin.
    Speckled(u64),
}

impl Fate {
    fn drawn(rng: &mut Rng, units: u64, survival: u64) -> Self {
        if !rng.chance(survival, 4) {
            return Self::Nothing;
        }
        match rng.below(4) {
            0 => {
                let cut = rng.below(units + 1);
                if rng.chance(1, 2) { Self::Run(0, cut) } else { Self::Run(cut, units) }
            }
            1 => Self::Speckled(rng.draw()),
            _ => Self::Whole,
        }
    }

    fn spares(&self, unit: u64) -> bool {
        match self {
            Self::Whole => true,
            Self::Nothing => false,
            Self::Run(from, to) => (*from..*to).contains(&unit),
            Self::Speckled(salt) => mix(salt ^ unit) & 1 == 1,
        }
    }
}

/// By sector: the versions that may be there.
pub(crate) type Cached = BTreeMap<u64, Vec<Version>>;

/// What a power loss decides about: every version that lies in a cache, in a form in which many losses can be
/// drawn.
pub(crate) struct Doubt {
    /// Each sector, ascending, with its versions: a range of `versions`.
    sectors: Vec<(u64, Range<usize>)>,
    /// Each version with the index of its write.
    versions: Vec<(usize, Version)>,
    /// Each write, ascending, with the number of tear units up to its last one here.
    writes: Vec<(u64, u64)>,
    tear: u64,
}

/// One power loss: which versions are left.
pub(crate) struct Loss {
    fates: Vec<Fate>,
    /// By sector of the doubt: the index of the version that survives.
    left: Vec<Option<usize>>,
}

impl Doubt {
    pub(crate) fn of(cached: &Cached, tear: u64) -> Self {
        let mut units = BTreeMap::new();
        for version in cached.values().flatten() {
            let count = units.entry(version.write).or_insert(0);
            *count = (u64::from(version.at) / tear + 1).max(*count);
        }
        let writes: Vec<(u64, u64)> = units.into_iter().collect();
        let mut doubt =
            Self { sectors: Vec::with_capacity(cached.len()), versions: Vec::new(), writes, tear };
        for (sector, versions) in cached {
            let from = doubt.versions.len();
            for version in versions {
                let write = doubt.writes.partition_point(|(write, _)| *write < version.write);
                doubt.versions.push((write, version.clone()));
            }
            doubt.sectors.push((*sector, from..doubt.versions.len()));
        }
        doubt
    }

    /// The numbers of the writes.
    pub(crate) fn writes(&self) -> impl Iterator<Item = u64> {
        self.writes.iter().map(|(write, _)| *write)
    }

    /// Every version: its sector and the index of its write.
    pub(crate) fn places(&self) -> impl Iterator<Item = (u64, usize)> {
        let of = |(sector, range): &(u64, Range<usize>)| {
            let sector = *sector;
            self.versions[range.clone()].iter().map(move |(write, _)| (sector, *write))
        };
        self.sectors.iter().flat_map(of)
    }

    /// The sectors, ascending.
    pub(crate) fn sectors(&self) -> impl Iterator<Item = u64> {
        self.sectors.iter().map(|(sector, _)| *sector)
    }

    /// Draws what survives: each write whole, in part or not at all.
    pub(crate) fn lose(&self, rng: &mut Rng) -> Loss {
        // One crash loses nearly everything, another nearly nothing.
        let survival = rng.below(5);
        let fates: Vec<Fate> =
            self.writes.iter().map(|(_, units)| Fate::drawn(rng, *units, survival)).collect();
        let salt = rng.draw();
        let survivor = |(sector, range): &(u64, Range<usize>)| {
            let spared = |&at: &usize| {
                let (write, version) = &self.versions[at];
                fates[*write].spares(u64::from(version.at) / self.tear)
            };
            let count = range.clone().filter(spared).count() as u64;
            // The same draw for all sectors of a tear unit, which must not mix versions.
            let draw = mix(salt ^ (sector * SECTOR / self.tear));
            match count {
                0 => None,
                n if draw & 3 != 0 => range.clone().filter(spared).nth(index(n - 1)),
                n => range.clone().filter(spared).nth(index((draw >> 2) % n)),
            }
        };
        let left = self.sectors.iter().map(survivor).collect();
        Loss { fates, left }
    }

    /// The version that is left in `sector` after `loss`; `None` if the sector is as it was.
    pub(crate) fn left(&self, loss: &Loss, sector: u64) -> Option<&Version> {
        let at = self.sectors.binary_search_by_key(&sector, |(sector, _)| *sector).ok()?;
        loss.left[at].map(|version| &self.versions[version].1)
    }

    /// The version that is left after `loss`, for every sector.
    pub(crate) fn survivors<'d>(
        &'d self,
        loss: &'d Loss,
    ) -> impl Iterator<Item = (u64, Option<&'d Version>)> {
        self.sectors
            .iter()
            .zip(&loss.left)
            .map(|((sector, _), left)| (*sector, left.map(|version| &self.versions[version].1)))
    }

    /// By write: how many of its sectors are here, and how many of those `loss` spares.
    pub(crate) fn tally(&self, loss: &Loss) -> Vec<(u64, u64)> {
        let mut tally = vec![(0, 0); self.writes.len()];
        for (write, version) in &self.versions {
            tally[*write].0 += 1;
            tally[*write].1 += u64::from(loss.fates[*write].spares(u64::from(version.at) / self.tear));
        }
        tally
    }
}

/// A part of a write as a sector of a cache would hold it.
pub(crate) fn cache(cached: &mut Cached, write: u64, offset: u64, data: &Rc<[u8]>, from: u64, to: u64) {
    for at in (from..to).step_by(index(SECTOR)) {
        cached.entry((offset + at) / SECTOR).or_default().push(Version {
            write,
            data: Rc::clone(data),
            at: u32::try_from(at).unwrap_or_else(|_| unreachable!("a write is smaller than 4 GiB")),
        });
    }
}

/// The contents of a disk. See the module.
pub(crate) struct Medium {
    current: Image,
    durable: Image,
    cached: Cached,
    /// Writes that a failed flush covered: no later flush makes them durable, as Linux forgets such an error
    /// once told (C5). Nor are they if they are forced themselves, and that is still to come.
    forsaken: BTreeSet<u64>,
    tear: u64,
}

impl Medium {
    pub(crate) fn new(size: u64, tear: u32) -> Self {
        Self {
            current: Image::new(size),
            durable: Image::new(size),
            cached: BTreeMap::new(),
            forsaken: BTreeSet::new(),
            tear: u64::from(tear),
        }
    }

    /// Contents as a read sees them now.
    pub(crate) fn current(&self) -> &Image {
        &self.current
    }

    /// Contents that a power loss can't take away.
    pub(crate) fn durable(&self) -> &Image {
        &self.durable
    }

    /// Hash of what reads see and of what is durable.
    pub(crate) fn hash(&self) -> u64 {
        mix(self.current.hash()) ^ self.durable.hash()
    }

    /// What lies in the cache.
    pub(crate) fn cached(&self) -> &Cached {
        &self.cached
    }

    /// The unit in bytes that a crash does not tear.
    pub(crate) fn tear(&self) -> u64 {
        self.tear
    }

    /// Takes over another medium's durable contents, with what a power loss has left of its cache.
    pub(crate) fn load(&mut self, durable: &Image, doubt: &Doubt, loss: &Loss) {
        self.durable = durable.clone();
        for (sector, survivor) in doubt.survivors(loss) {
            if let Some(version) = survivor {
                self.durable.write(sector * SECTOR, version.bytes());
            }
        }
        self.current = self.durable.clone();
        self.cached.clear();
    }

    /// Sectors that have a version in the cache.
    pub(crate) fn cached_sectors(&self) -> usize {
        self.cached.len()
    }

    /// Sets contents past any cache, for the set-up of a test.
    pub(crate) fn poke(&mut self, offset: u64, bytes: &[u8]) {
        for sector in offset / SECTOR..(offset + bytes.len() as u64).div_ceil(SECTOR) {
            self.cached.remove(&sector);
        }
        self.current.write(offset, bytes);
        self.durable.write(offset, bytes);
    }

    /// The bytes `from..to` of `data`, which belongs at `offset`, arrive in the cache as part of `write`.
    pub(crate) fn land(&mut self, write: u64, offset: u64, data: &Rc<[u8]>, from: u64, to: u64) {
        cache(&mut self.cached, write, offset, data, from, to);
        self.current.write(offset + from, &data[index(from)..index(to)]);
    }

    /// Whether these bytes are zero and so is everything on their pages, because nothing was written there.
    pub(crate) fn leaves_untouched(&self, offset: u64, bytes: &[u8]) -> bool {
        let pages = index(offset) / PAGE..(index(offset) + bytes.len()).div_ceil(PAGE);
        bytes.iter().all(|byte| *byte == 0) && pages.into_iter().all(|page| self.current.page(page).is_none())
    }

    /// The same without a cache: durable at once.
    pub(crate) fn land_durable(&mut self, offset: u64, data: &[u8], from: u64, to: u64) {
        let part = &data[index(from)..index(to)];
        self.current.write(offset + from, part);
        self.durable.write(offset + from, part);
    }

    /// Makes what landed of the writes that `covered` names durable.
    pub(crate) fn flush(&mut self, covered: impl Fn(u64) -> bool) {
        let (durable, forsaken) = (&mut self.durable, &self.forsaken);
        self.cached.retain(|sector, versions| {
            let last = versions.iter().rposition(|v| covered(v.write) && !forsaken.contains(&v.write));
            if let Some(last) = last {
                durable.write(sector * SECTOR, versions[last].bytes());
                versions.drain(..=last);
            }
            !versions.is_empty()
        });
    }

    /// The same within one range: a forced write.
    pub(crate) fn flush_write(&mut self, write: u64, offset: u64, length: u64) {
        if self.forsaken.contains(&write) {
            return;
        }
        for sector in offset / SECTOR..(offset + length) / SECTOR {
            let Some(versions) = self.cached.get_mut(&sector) else { continue };
            if let Some(last) = versions.iter().rposition(|v| v.write == write) {
                self.durable.write(sector * SECTOR, versions[last].bytes());
                versions.drain(..=last);
            }
            if versions.is_empty() {
                self.cached.remove(&sector);
            }
        }
    }

    /// A flush failed: what it covered will never be made durable by another.
    pub(crate) fn flush_failed(&mut self, covered: impl Fn(u64) -> bool) {
        let writes = self.cached.values().flatten().map(|v| v.write).filter(|&w| covered(w));
        self.forsaken.extend(writes);
    }

    /// The cache is lost: of each of its writes survives what the seed says, and then that is durable.
    pub(crate) fn power_loss(&mut self, rng: &mut Rng) {
        let doubt = Doubt::of(&std::mem::take(&mut self.cached), self.tear);
        let loss = doubt.lose(rng);
        for (sector, survivor) in doubt.survivors(&loss) {
            if let Some(version) = survivor {
                self.durable.write(sector * SECTOR, version.bytes());
            }
            let mut bytes = [0; 512];
            self.durable.read(sector * SECTOR, &mut bytes);
            self.current.write(sector * SECTOR, &bytes);
        }
        self.forsaken.clear();
    }
}
