//! Levels 4, 5 and 6: stripes, their columns, and which member holds what.
//!
//! Every layout of MD is one of two shapes. *Skip*: the data columns take the members in ascending order and
//! leave out P and Q. *Rotate*: they start behind the parity and wrap around. So a [`StripeMap`] is a handful
//! of bytes, made with one multiplication, and answers each question with a compare and an add.

use pinstripe_md::level::ParityLayout as Algorithm;

use super::{
    CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, GeometryError, MemberSlot, ParityLayout, RangeError, StripeId,
    check_array_bytes, check_common, check_range,
};

/// The address map of a RAID4, RAID5 or RAID6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParityGeometry {
    layout: ParityLayout,
    rule: Rule,
    members: u8,
    columns: u8,
    chunk_shift: u8,
    logical_block: u32,
    member_bytes: u64,
    by_columns: Divisor,
    by_rotation: Divisor,
}

/// Which way the parity moves from stripe to stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rotation {
    /// P always on this member.
    Fixed(u8),
    /// P starts on the last member of the rotation and moves down.
    Left,
    /// P starts on member 0 and moves up.
    Right,
    /// As `Left`, one stripe ahead.
    LeftAhead,
}

/// Where Q is, seen from P.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QPlace {
    None,
    AfterP,
    BeforeP,
    Last,
}

/// A layout taken apart into what the arithmetic needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule {
    rotation: Rotation,
    q: QPlace,
    /// `Some(d)`: data column 0 is `d` members after P and the columns wrap around; `None`: ascending,
    /// leaving out P and Q.
    rotate_from_p: Option<u8>,
    /// Q's exponents are the members' own indices.
    ddf: bool,
}

impl Rule {
    /// `columns` is also the member that holds P where P is always last (and Q, if there is one, behind it).
    fn of(layout: ParityLayout, columns: u8) -> Self {
        use Rotation::{Fixed, Left, LeftAhead, Right};
        // Level 6 uses level 5's algorithms with Q next to P, or with Q on a further member (those that end
        // in 6).
        let (q, behind) = if layout.parities() == 2 { (QPlace::AfterP, 2) } else { (QPlace::None, 1) };
        let (rotation, q, rotate_from_p, ddf) = match layout.algorithm() {
            Algorithm::LeftAsymmetric => (Left, q, None, false),
            Algorithm::RightAsymmetric => (Right, q, None, false),
            Algorithm::LeftSymmetric => (Left, q, Some(behind), false),
            Algorithm::RightSymmetric => (Right, q, Some(behind), false),
            Algorithm::ParityFirst => (Fixed(0), q, None, false),
            Algorithm::ParityLast => (Fixed(columns), q, None, false),
            Algorithm::DdfZeroRestart => (Right, QPlace::AfterP, None, true),
            Algorithm::DdfNRestart => (LeftAhead, QPlace::AfterP, None, true),
            Algorithm::DdfNContinue => (Left, QPlace::BeforeP, Some(1), true),
            Algorithm::LeftAsymmetric6 => (Left, QPlace::Last, None, false),
            Algorithm::RightAsymmetric6 => (Right, QPlace::Last, None, false),
            Algorithm::LeftSymmetric6 => (Left, QPlace::Last, Some(1), false),
            Algorithm::RightSymmetric6 => (Right, QPlace::Last, Some(1), false),
            Algorithm::ParityFirst6 => (Fixed(0), QPlace::Last, None, false),
        };
        Self { rotation, q, rotate_from_p, ddf }
    }

    /// Over how many members P (and rotated data) moves: all but a Q that stays on the last.
    fn rotation_members(self, members: u8) -> u8 {
        if self.q == QPlace::Last { members - 1 } else { members }
    }
}

impl ParityGeometry {
    /// An array of `members` members of which each gives `member_bytes`, a whole number of chunks.
    pub fn new(
        layout: ParityLayout,
        members: usize,
        chunk_bytes: u32,
        member_bytes: u64,
        logical_block: u32,
    ) -> Result<Self, GeometryError> {
        check_common(layout.level(), members, layout.members_min(), logical_block)?;
        if !chunk_bytes.is_power_of_two() || !(CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&chunk_bytes) {
            return Err(GeometryError::ParityChunk { chunk_bytes });
        }
        if member_bytes < u64::from(chunk_bytes) {
            return Err(GeometryError::MemberTooSmall { slot: 0, member_bytes, chunk_bytes });
        }
        if !member_bytes.is_multiple_of(u64::from(chunk_bytes)) {
            return Err(GeometryError::MemberSize { member_bytes, chunk_bytes });
        }
        let columns = members - layout.parities();
        check_array_bytes(u128::from(member_bytes) * columns as u128)?;
        let too_many = |_| GeometryError::TooManyMembers { members };
        let columns = u8::try_from(columns).map_err(too_many)?;
        let members = u8::try_from(members).map_err(too_many)?;
        let rule = Rule::of(layout, columns);
        Ok(Self {
            layout,
            rule,
            members,
            columns,
            chunk_shift: chunk_bytes.trailing_zeros().to_le_bytes()[0],
            logical_block,
            member_bytes,
            by_columns: Divisor::new(columns),
            by_rotation: Divisor::new(rule.rotation_members(members)),
        })
    }

    /// Whether the member of a slot holds data in any stripe.
    pub fn holds_data(&self, slot: MemberSlot) -> bool {
        // After as many stripes as there are members the pattern begins anew.
        let mut stripes = (0..u64::from(self.members)).map(StripeId);
        stripes.any(|stripe| matches!(self.slots(stripe).role(slot), Role::Data(_)))
    }

    /// Level and algorithm.
    pub fn layout(&self) -> ParityLayout {
        self.layout
    }

    /// How many members the array has, `n`.
    pub fn members(&self) -> usize {
        usize::from(self.members)
    }

    /// How many data chunks a stripe has, `k`.
    pub fn columns(&self) -> usize {
        usize::from(self.columns)
    }

    /// How many members may be missing with nothing lost: 1, or 2 on level 6.
    pub fn redundancy(&self) -> usize {
        self.layout.parities()
    }

    /// The chunk, in bytes: a power of two.
    pub fn chunk_bytes(&self) -> u32 {
        1 << self.chunk_shift
    }

    /// The smallest unit of I/O, in bytes.
    pub fn logical_block(&self) -> u32 {
        self.logical_block
    }

    /// The used bytes of each member.
    pub fn member_bytes(&self) -> u64 {
        self.member_bytes
    }

    /// The bytes that the array's user sees.
    pub fn array_bytes(&self) -> u64 {
        self.member_bytes * u64::from(self.columns)
    }

    /// How many stripes the array has.
    pub fn stripes(&self) -> u64 {
        self.member_bytes >> self.chunk_shift
    }

    /// The data bytes of one stripe, `k * chunk`.
    pub fn stripe_bytes(&self) -> u32 {
        u32::from(self.columns) << self.chunk_shift
    }

    /// Checks that a range lies in the array and is made of whole logical blocks.
    pub fn check_range(&self, offset: u64, length: u64) -> Result<(), RangeError> {
        check_range(offset, length, self.array_bytes(), self.logical_block)
    }

    /// The stripe of an array offset, and the byte within the stripe's data (`0..stripe_bytes`).
    pub fn locate(&self, array_offset: u64) -> (StripeId, u32) {
        let chunk_index = array_offset >> self.chunk_shift;
        let stripe = self.by_columns.quotient(chunk_index);
        let column = chunk_index - stripe * u64::from(self.columns);
        let within = (column << self.chunk_shift) | (array_offset & u64::from(self.chunk_bytes() - 1));
        (StripeId(stripe), low_u32(within))
    }

    /// The column and the byte within its chunk, of a byte within a stripe's data.
    pub fn column_of(&self, within_stripe: u32) -> (usize, u32) {
        ((within_stripe >> self.chunk_shift) as usize, within_stripe & (self.chunk_bytes() - 1))
    }

    /// The array offset of a byte within a stripe's data: the inverse of [`locate`](Self::locate).
    pub fn array_offset(&self, stripe: StripeId, within_stripe: u32) -> u64 {
        ((stripe.0 * u64::from(self.columns)) << self.chunk_shift) + u64::from(within_stripe)
    }

    /// The first byte of the stripe on every member, relative to the member's data area.
    pub fn member_offset(&self, stripe: StripeId) -> u64 {
        stripe.0 << self.chunk_shift
    }

    /// The stripe of a member offset, and the byte within the chunk.
    pub fn stripe_of_member_offset(&self, member_offset: u64) -> (StripeId, u32) {
        (
            StripeId(member_offset >> self.chunk_shift),
            low_u32(member_offset & u64::from(self.chunk_bytes() - 1)),
        )
    }

    /// Which member holds what in this stripe.
    #[inline]
    pub fn slots(&self, stripe: StripeId) -> StripeMap {
        let rotating = self.rule.rotation_members(self.members);
        let last = rotating - 1;
        let p = match self.rule.rotation {
            Rotation::Fixed(slot) => slot,
            Rotation::Left => last - self.by_rotation.remainder(stripe.0),
            Rotation::Right => self.by_rotation.remainder(stripe.0),
            Rotation::LeftAhead => last - self.by_rotation.remainder(stripe.0 + 1),
        };
        let q = match self.rule.q {
            QPlace::None => NO_SLOT,
            QPlace::AfterP => wrap(p + 1, self.members),
            QPlace::BeforeP => wrap(p + self.members - 1, self.members),
            QPlace::Last => self.members - 1,
        };
        let (first, wrap_at) = match self.rule.rotate_from_p {
            Some(distance) => (wrap(p + distance, rotating), rotating),
            None => (0, 0),
        };
        StripeMap { p, q, members: self.members, columns: self.columns, first, wrap_at, ddf: self.rule.ddf }
    }

    /// Cuts a range of the array into stripes.
    pub fn stripe_pieces(&self, offset: u64, length: u64) -> Result<StripePieces, RangeError> {
        self.check_range(offset, length)?;
        let (stripe, start) = self.locate(offset);
        Ok(StripePieces { stripe: stripe.0, start, stripe_bytes: self.stripe_bytes(), done: 0, left: length })
    }

    /// Cuts a range of the array into chunks.
    pub fn pieces(&self, offset: u64, length: u64) -> Result<Pieces, RangeError> {
        Ok(Pieces {
            stripes: self.stripe_pieces(offset, length)?,
            current: None,
            chunk_shift: self.chunk_shift,
        })
    }
}

/// What a member holds in one stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The data chunk of this column, `0..k`.
    Data(usize),
    /// The XOR of all data.
    P,
    /// The sum of all data, each multiplied by 2 to its exponent.
    Q,
}

/// Where the chunks of one stripe lie. Made by [`ParityGeometry::slots`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeMap {
    p: u8,
    q: u8,
    members: u8,
    columns: u8,
    /// The member of column 0, where the columns rotate.
    first: u8,
    /// Where they wrap around to member 0; 0: they don't rotate, they skip P and Q.
    wrap_at: u8,
    ddf: bool,
}

/// No member has this slot; it compares greater than all, so that the skip of an absent Q never happens.
const NO_SLOT: u8 = u8::MAX;

impl StripeMap {
    /// How many members the array has.
    pub fn members(self) -> usize {
        usize::from(self.members)
    }

    /// How many data columns the stripe has.
    pub fn columns(self) -> usize {
        usize::from(self.columns)
    }

    /// The member that holds P.
    pub fn p_slot(self) -> MemberSlot {
        MemberSlot(self.p)
    }

    /// The member that holds Q, on level 6.
    pub fn q_slot(self) -> Option<MemberSlot> {
        (self.q != NO_SLOT).then_some(MemberSlot(self.q))
    }

    /// The members that hold P and Q.
    pub fn parity_slots(self) -> impl Iterator<Item = MemberSlot> {
        [Some(self.p_slot()), self.q_slot()].into_iter().flatten()
    }

    /// The member that holds the data of a column, `0..k`.
    pub fn data_slot(self, column: usize) -> MemberSlot {
        debug_assert!(column < self.columns(), "column {column} of {}", self.columns);
        let column = low_u8(column);
        if self.wrap_at == 0 {
            let (low, high) = (self.p.min(self.q), self.p.max(self.q));
            let slot = column + u8::from(column >= low);
            return MemberSlot(slot + u8::from(slot >= high));
        }
        MemberSlot(wrap(self.first + column, self.wrap_at))
    }

    /// What a member holds.
    pub fn role(self, slot: MemberSlot) -> Role {
        debug_assert!(slot.0 < self.members, "slot {slot} of {}", self.members);
        if slot.0 == self.p {
            Role::P
        } else if slot.0 == self.q {
            Role::Q
        } else if self.wrap_at == 0 {
            Role::Data(usize::from(slot.0 - u8::from(slot.0 > self.p) - u8::from(slot.0 > self.q)))
        } else {
            Role::Data(usize::from(wrap(slot.0 + self.wrap_at - self.first, self.wrap_at)))
        }
    }

    /// The exponent `e` of a column: Q is the sum of `2^e * data`. It goes by the member's *physical*
    /// position: counted from the member after Q, leaving out P; with DDF layouts it is the member's index.
    pub fn q_exponent(self, column: usize) -> usize {
        let slot = self.data_slot(column).0;
        if self.ddf {
            return usize::from(slot);
        }
        let (walk, walk_p) = (self.walk(slot), self.walk(self.p));
        usize::from(walk - u8::from(walk_p < walk))
    }

    /// The exponents are in `0..q_exponents()`: `k` of them, or `n` with DDF layouts, where the places of P
    /// and Q count and contribute nothing.
    pub fn q_exponents(self) -> usize {
        usize::from(if self.ddf { self.members } else { self.columns })
    }

    /// The column with an exponent of `0..q_exponents()`: the inverse of [`q_exponent`](Self::q_exponent).
    /// `None` for the places of P and Q in DDF layouts.
    pub fn column_of_exponent(self, exponent: usize) -> Option<usize> {
        let exponent = low_u8(exponent);
        let slot = if self.ddf {
            exponent
        } else {
            let walk = exponent + u8::from(exponent >= self.walk(self.p));
            wrap(walk + self.walk_start(), self.members)
        };
        match self.role(MemberSlot(slot)) {
            Role::Data(column) => Some(column),
            Role::P | Role::Q => None,
        }
    }

    /// The member at which the exponents begin: after Q (level 4 and 5 have no Q, and any answer does).
    fn walk_start(self) -> u8 {
        if self.q >= self.members - 1 { 0 } else { self.q + 1 }
    }

    /// How many members the walk from `walk_start` has passed when it comes to this one.
    fn walk(self, slot: u8) -> u8 {
        wrap(slot + self.members - self.walk_start(), self.members)
    }
}

/// A part of a request that lies in one stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripePiece {
    /// The stripe.
    pub stripe: StripeId,
    /// First byte within the stripe's data, `0..stripe_bytes`.
    pub start: u32,
    /// Bytes; at most `stripe_bytes - start`.
    pub length: u32,
    /// Where the part begins within the request.
    pub request_offset: u64,
}

/// The stripes of a range, in order. Made by [`ParityGeometry::stripe_pieces`].
#[derive(Clone, Debug)]
pub struct StripePieces {
    stripe: u64,
    start: u32,
    stripe_bytes: u32,
    done: u64,
    left: u64,
}

impl Iterator for StripePieces {
    type Item = StripePiece;

    fn next(&mut self) -> Option<StripePiece> {
        if self.left == 0 {
            return None;
        }
        let length = low_u32(u64::from(self.stripe_bytes - self.start).min(self.left));
        let piece = StripePiece {
            stripe: StripeId(self.stripe),
            start: self.start,
            length,
            request_offset: self.done,
        };
        self.stripe += 1;
        self.start = 0;
        self.done += u64::from(length);
        self.left -= u64::from(length);
        Some(piece)
    }
}

/// A part of a request that lies in one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The stripe.
    pub stripe: StripeId,
    /// The data column, `0..k`.
    pub column: usize,
    /// First byte within the chunk.
    pub chunk_offset: u32,
    /// Bytes; at most `chunk - chunk_offset`.
    pub length: u32,
    /// Where the part begins within the request.
    pub request_offset: u64,
}

/// The chunks of a range, in order. Made by [`ParityGeometry::pieces`].
#[derive(Clone, Debug)]
pub struct Pieces {
    stripes: StripePieces,
    current: Option<StripePiece>,
    chunk_shift: u8,
}

impl Iterator for Pieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let rest = match self.current.take() {
            Some(rest) => rest,
            None => self.stripes.next()?,
        };
        let chunk = 1u32 << self.chunk_shift;
        let chunk_offset = rest.start & (chunk - 1);
        let length = (chunk - chunk_offset).min(rest.length);
        if length < rest.length {
            self.current = Some(StripePiece {
                stripe: rest.stripe,
                start: rest.start + length,
                length: rest.length - length,
                request_offset: rest.request_offset + u64::from(length),
            });
        }
        Some(Piece {
            stripe: rest.stripe,
            column: (rest.start >> self.chunk_shift) as usize,
            chunk_offset,
            length,
            request_offset: rest.request_offset,
        })
    }
}

/// `value` modulo `modulus`, for a value below twice the modulus.
fn wrap(value: u8, modulus: u8) -> u8 {
    if value >= modulus { value - modulus } else { value }
}

/// The caller's value is below 2^32 because a stripe has at most 63 chunks of 16 MiB.
#[expect(clippy::cast_possible_truncation, reason = "bounded by CHUNK_BYTES_MAX and MEMBERS_MAX")]
fn low_u32(value: u64) -> u32 {
    debug_assert!(u32::try_from(value).is_ok());
    value as u32
}

/// The caller's value is below 64: a column or an exponent.
#[expect(clippy::cast_possible_truncation, reason = "bounded by MEMBERS_MAX")]
fn low_u8(value: usize) -> u8 {
    debug_assert!(value < super::MEMBERS_MAX);
    value as u8
}

/// Division by a small number as one multiplication (Granlund and Montgomery 1994).
///
/// With `m = ceil(2^63 / d)` and `e = m * d - 2^63 < d`, `floor(x * m / 2^63)` is exactly `floor(x / d)`
/// while `x * e < 2^63`. Here `d <= 64`, and `x` counts chunks of at least 4 KiB in fewer than 2^63 bytes, so
/// `x <= 2^51`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Divisor {
    divisor: u8,
    magic: u64,
}

impl Divisor {
    fn new(divisor: u8) -> Self {
        Self { divisor, magic: (1u64 << 63).div_ceil(u64::from(divisor)) }
    }

    #[expect(clippy::cast_possible_truncation, reason = "the quotient is not larger than the dividend")]
    fn quotient(self, dividend: u64) -> u64 {
        debug_assert!(dividend < 1 << 57);
        ((u128::from(dividend) * u128::from(self.magic)) >> 63) as u64
    }

    fn remainder(self, dividend: u64) -> u8 {
        let remainder = dividend - self.quotient(dividend) * u64::from(self.divisor);
        debug_assert!(remainder < u64::from(self.divisor));
        remainder.to_le_bytes()[0]
    }
}
