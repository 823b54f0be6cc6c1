//! Members that another one's superblock calls none.
//!
//! Such a member may be the only one that has its last update. The others were started without it then, and
//! may have gone on to the same number of events, or one less. (Our own starts go on to a higher one,
//! `Membership::is_new`; the kernel's may not.) With the most events it would otherwise decide which devices
//! are members, and its data would be taken for current. But what mdadm has forced together counts. Pure.

use pinstripe_md::superblock::{ArrayRecord, Role, Superblock};

use super::Found;
use crate::mutants::{Mutant, active};

/// By which words a member is set aside, in this order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Word {
    /// That of a member which is disowned by none.
    Undisputed,
    /// That of a member which the disowned one doesn't disown.
    OneSided,
    /// That of any.
    Mutual,
}

/// Takes out members that are disowned.
pub(super) fn set_aside(found: &mut Vec<Found>) -> Vec<Found> {
    let mut gone = Vec::new();
    let words = [Word::Undisputed, Word::OneSided, Word::Mutual];
    for word in words.into_iter().filter(|_| !active(Mutant::RevenantAccepted)) {
        while let Some(other) = (0..found.len()).find(|&other| is_set_aside(found, other, word)) {
            let mut leaving = vec![other];
            if word == Word::Mutual {
                // Neither can be believed, unless both can.
                let by: Vec<usize> = (0..found.len()).filter(|&by| disowns(found, by, other)).collect();
                if !by.iter().all(|&by| is_unfinished(found, by, other)) {
                    leaving.extend(by);
                }
            }
            leaving.sort_unstable();
            gone.extend(leaving.into_iter().rev().map(|index| found.remove(index)));
        }
    }
    gone
}

fn is_set_aside(found: &[Found], other: usize, word: Word) -> bool {
    let counts = |by: &usize| disowns(found, *by, other) && !is_contradicted(found, *by, other);
    (0..found.len()).filter(counts).any(|by| match word {
        Word::Undisputed => !is_disowned(found, by),
        Word::OneSided => !disowns(found, other, by),
        Word::Mutual => true,
    })
}

fn is_disowned(found: &[Found], member: usize) -> bool {
    (0..found.len()).any(|by| disowns(found, by, member))
}

/// Whether `other` is named by a superblock of the same update as that of `by`, on a third member about which
/// there is no doubt. Of one update there are two tables only where `mdadm --assemble --force` has put an
/// array together: it gives members that were left out the others' events, and enters them in one superblock
/// alone. The kernel takes them, and may not write before it stops. Our first update of it makes the tables
/// one, and a crash may leave that on some members. (One that came back by itself is named by none of these
/// updates but such as came with it, and these are in doubt too.)
fn is_contradicted(found: &[Found], by: usize, other: usize) -> bool {
    let array = |member: usize| &found[member].superblock.array;
    let is_of_update = |member: usize| {
        let ahead = array(member).events.checked_sub(array(by).events);
        ahead.is_some_and(|ahead| ahead <= 1)
    };
    let names = |third: &usize| {
        *third != other
            && is_of_update(*third)
            && has_slot(array(*third), &found[other].superblock)
            && has_slot(array(*third), &found[*third].superblock)
    };
    is_of_update(other) && (0..found.len()).filter(names).any(|third| !is_disowned(found, third))
}

/// Whether one member's superblock says that another, which calls itself a member, is none. One event behind,
/// it may just have missed how a device joined; but a device that joins isn't whole.
fn disowns(found: &[Found], by: usize, other: usize) -> bool {
    let (by, other) = (&found[by].superblock, &found[other].superblock);
    let (theirs, mine) = (by.array.events, other.array.events);
    let knows = theirs >= mine || theirs + 1 == mine && other.member.recovery_offset.is_none();
    by.same_array(other).is_ok()
        && knows
        && has_slot(&by.array, by)
        && has_slot(&other.array, other)
        && !has_slot(&by.array, other)
}

/// Whether nothing was acknowledged under either of two superblocks, which are of one update and disown each
/// other: a member that both name has neither of them. A write is acknowledged when all members have the
/// record under which it was made (C2). So each of the two has everything, and one of them may go.
fn is_unfinished(found: &[Found], one: usize, other: usize) -> bool {
    let (a, b) = (&found[one].superblock.array, &found[other].superblock.array);
    let lacks_both = |member: &Found| {
        let superblock = &member.superblock;
        let is_behind = superblock.array.events < a.events && has_slot(&superblock.array, superblock);
        is_behind && has_slot(a, superblock) && has_slot(b, superblock)
    };
    a.events == b.events && found.iter().any(lacks_both)
}

fn has_slot(array: &ArrayRecord, member: &Superblock) -> bool {
    matches!(member.role_in(array), Role::Slot(_))
}
