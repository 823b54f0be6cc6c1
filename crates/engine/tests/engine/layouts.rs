//! Every layout that we make: written at random, then read with everything that may be missing.

use crate::arrays::{
    self,
    scene::{Scene, clients, wish},
};
use pinstripe_engine::geometry::ParityLayout as EngineLayout;
use pinstripe_md::{
    level::{Layout, Level, ParityLayout},
    placement::{InitialSync, NewBitmap},
};

#[test]
fn random_writes_of_every_layout_survive_every_loss() {
    let mut count = 0;
    let raid4 = std::iter::once((Level::Raid4, Layout::None));
    let others = [Level::Raid5, Level::Raid6]
        .into_iter()
        .flat_map(|level| ParityLayout::all_of(level).map(move |layout| (level, Layout::Parity(layout))));
    for (level, layout) in raid4.chain(others) {
        for members in 3..=6 {
            if u32::from(members) < level.members_min() {
                continue;
            }
            write_and_lose(level, layout, members);
            count += 1;
        }
    }
    assert_eq!(count, EngineLayout::all().count() * 4 - 14, "RAID6 begins at four members");
}

fn write_and_lose(level: Level, layout: Layout, members: u8) {
    println!("{level} {layout} of {members}");
    let mut wish = wish(level, members, 4 << 10, NewBitmap::None, InitialSync::AssumeClean);
    wish.layout = layout;
    wish.members.iter_mut().for_each(|member| member.sectors = 256 + 256);
    let mut scene = Scene::new(u64::from(members), wish, 1);
    clients(&mut scene, 3, 20, 60);
    assert_eq!(scene.check(), 0);
    scene.stop();
    let redundancy = usize::from(level.parity_count());
    let disks = scene.disks.clone();
    for first in 0..disks.len() {
        for second in first..disks.len() {
            if second != first && redundancy < 2 {
                continue;
            }
            let left: Vec<_> =
                (0..disks.len()).filter(|i| *i != first && *i != second).map(|i| disks[i].source()).collect();
            scene.array = arrays::assemble(&mut scene.world, left, arrays::read_only()).unwrap();
            scene.read_all();
        }
    }
}
