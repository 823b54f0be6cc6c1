//! The operations on vector registers, written once for every register width.
//!
//! Three traits keep apart what varies: [`Lanes`] is a register and its arithmetic, [`Span`] how much of it
//! memory holds and how it is stored, [`Operation`] what happens to the bytes at one offset. [`run`] walks an
//! operation over a length: blocks of several registers, then single ones, then what is left. Inside a block
//! the sources are walked with the sums kept in registers, so that every source byte is read once and every
//! destination byte written once.
//!
//! Everything is `inline(always)` and is compiled into the functions that [`vector_operations`] makes; those
//! carry the processor features, and only there do the intrinsics become single instructions.
#![allow(
    clippy::inline_always,
    reason = "code must end up in the functions that enable the processor features"
)]

/// A vector register of bytes, each byte an element of the field.
///
/// # Safety
/// Every method requires that the processor has the features of the implementing module; those with a pointer
/// require that `BYTES` bytes (of the partial ones: `count < BYTES` bytes) are valid there for the access, at
/// any alignment.
pub(crate) trait Lanes: Copy {
    /// The width, a power of two of at most [`WIDTH_MAX`].
    const BYTES: usize;
    /// A factor made ready for multiplication.
    type Factor: Copy;

    unsafe fn zero() -> Self;
    unsafe fn load(from: *const u8) -> Self;
    unsafe fn store(self, to: *mut u8);
    unsafe fn xor(self, other: Self) -> Self;
    unsafe fn or(self, other: Self) -> Self;
    unsafe fn is_zero(self) -> bool;
    /// Each byte times two.
    unsafe fn double(self) -> Self;
    unsafe fn factor(value: u8) -> Self::Factor;
    unsafe fn times(self, factor: Self::Factor) -> Self;

    /// Loads `count` bytes; the others are zero.
    #[inline(always)]
    unsafe fn load_part(from: *const u8, count: usize) -> Self {
        let mut bytes = [0; WIDTH_MAX];
        debug_assert!(count < Self::BYTES);
        // SAFETY: `count` bytes are valid at `from` (caller) and fit into `bytes`, which is as wide as any
        // register.
        unsafe {
            from.copy_to_nonoverlapping(bytes.as_mut_ptr(), count);
            Self::load(bytes.as_ptr())
        }
    }

    /// Stores the first `count` bytes.
    #[inline(always)]
    unsafe fn store_part(self, to: *mut u8, count: usize) {
        let mut bytes = [0; WIDTH_MAX];
        debug_assert!(count < Self::BYTES);
        // SAFETY: `bytes` is as wide as any register; `count` bytes are valid at `to` (caller).
        unsafe {
            self.store(bytes.as_mut_ptr());
            to.copy_from_nonoverlapping(bytes.as_ptr(), count);
        }
    }
}

/// The width of the widest register.
const WIDTH_MAX: usize = 64;

/// How the registers of one step meet memory.
///
/// # Safety
/// As for [`Lanes`].
trait Span: Copy {
    unsafe fn load<L: Lanes>(self, from: *const u8) -> L;
    unsafe fn store<L: Lanes>(self, value: L, to: *mut u8);
}

/// Whole registers.
#[derive(Clone, Copy)]
struct Whole;

/// So many bytes of a register, fewer than it has.
#[derive(Clone, Copy)]
struct Part(usize);

impl Span for Whole {
    #[inline(always)]
    unsafe fn load<L: Lanes>(self, from: *const u8) -> L {
        // SAFETY: the caller's promise.
        unsafe { L::load(from) }
    }

    #[inline(always)]
    unsafe fn store<L: Lanes>(self, value: L, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { value.store(to) }
    }
}

impl Span for Part {
    #[inline(always)]
    unsafe fn load<L: Lanes>(self, from: *const u8) -> L {
        // SAFETY: the caller's promise.
        unsafe { L::load_part(from, self.0) }
    }

    #[inline(always)]
    unsafe fn store<L: Lanes>(self, value: L, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { value.store_part(to, self.0) }
    }
}

/// `N` neighbouring registers.
#[derive(Clone, Copy)]
struct Block<L, const N: usize>([L; N]);

/// # Safety
/// All methods: as for [`Lanes`], for `N` registers. With [`Part`], `N` is 1.
impl<L: Lanes, const N: usize> Block<L, N> {
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller's promise.
        Self([unsafe { L::zero() }; N])
    }

    #[inline(always)]
    unsafe fn load<S: Span>(span: S, from: *const u8) -> Self {
        // SAFETY: the caller's promise; register `i` lies `i` widths behind `from`.
        unsafe {
            let mut block = Self::zero();
            for i in 0..N {
                block.0[i] = span.load(from.add(i * L::BYTES));
            }
            block
        }
    }

    #[inline(always)]
    unsafe fn store<S: Span>(self, span: S, to: *mut u8) {
        for i in 0..N {
            // SAFETY: the caller's promise; register `i` lies `i` widths behind `to`.
            unsafe { span.store(self.0[i], to.add(i * L::BYTES)) }
        }
    }

    #[inline(always)]
    unsafe fn xor(mut self, other: Self) -> Self {
        for i in 0..N {
            // SAFETY: the caller's promise.
            self.0[i] = unsafe { self.0[i].xor(other.0[i]) };
        }
        self
    }

    #[inline(always)]
    unsafe fn double(mut self) -> Self {
        for i in 0..N {
            // SAFETY: the caller's promise.
            self.0[i] = unsafe { self.0[i].double() };
        }
        self
    }

    #[inline(always)]
    unsafe fn times(mut self, factor: L::Factor) -> Self {
        for i in 0..N {
            // SAFETY: the caller's promise.
            self.0[i] = unsafe { self.0[i].times(factor) };
        }
        self
    }

    #[inline(always)]
    unsafe fn is_zero(self) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            let mut any = self.0[0];
            for i in 1..N {
                any = any.or(self.0[i]);
            }
            any.is_zero()
        }
    }
}

/// What happens to the bytes at one offset of all slices.
trait Operation<L: Lanes> {
    /// Treats `N` registers from offset `at`; false ends the walk.
    ///
    /// # Safety
    /// The processor has the features of `L`. The pointers of the operation are valid for the bytes that
    /// `span` says, from offset `at`.
    unsafe fn step<S: Span, const N: usize>(&self, at: usize, span: S) -> bool;
}

/// Walks over `at..length`, `N` registers at a time while that many are left; false if a step ended the walk.
///
/// # Safety
/// The processor has the features of `L`. The pointers of the operation are valid for `length` bytes.
#[inline(always)]
unsafe fn run<L: Lanes, O: Operation<L>, const N: usize>(
    operation: &O,
    mut at: usize,
    length: usize,
) -> bool {
    // SAFETY (of all steps): each treats bytes below `length`, by the condition before it.
    while length - at >= N * L::BYTES {
        // SAFETY: see above.
        if !unsafe { operation.step::<Whole, N>(at, Whole) } {
            return false;
        }
        at += N * L::BYTES;
    }
    while length - at >= L::BYTES {
        // SAFETY: see above.
        if !unsafe { operation.step::<Whole, 1>(at, Whole) } {
            return false;
        }
        at += L::BYTES;
    }
    // SAFETY: see above; fewer bytes than a register are left.
    at == length || unsafe { operation.step::<Part, 1>(at, Part(length - at)) }
}

/// `dst = first + rest`; `first` may be `dst` itself.
struct Sum<R> {
    dst: *mut u8,
    first: *const u8,
    rest: R,
}

impl<'a, L: Lanes, R: AsRef<[&'a [u8]]>> Operation<L> for Sum<R> {
    #[inline(always)]
    unsafe fn step<S: Span, const N: usize>(&self, at: usize, span: S) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sum = Block::<L, N>::load(span, self.first.add(at));
            // From the last: 1.4 times as fast out of a second-level cache (Zen 5, sources side by side),
            // elsewhere the same.
            for source in self.rest.as_ref().iter().rev() {
                sum = sum.xor(Block::load(span, source.as_ptr().add(at)));
            }
            sum.store(span, self.dst.add(at));
        }
        true
    }
}

/// P and Q of the columns at one offset, by Horner's rule from the greatest exponent down. The last column is
/// present.
///
/// # Safety
/// The processor has the features of `L`, and the columns are valid from offset `at` for what `span` says.
#[inline(always)]
unsafe fn syndromes<L: Lanes, S: Span, const N: usize>(
    last: *const u8,
    others: &[Option<&[u8]>],
    at: usize,
    span: S,
) -> (Block<L, N>, Block<L, N>) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut p = Block::<L, N>::load(span, last.add(at));
        let mut q = p;
        for column in others.iter().rev() {
            q = q.double();
            if let Some(data) = column {
                let data = Block::load(span, data.as_ptr().add(at));
                p = p.xor(data);
                q = q.xor(data);
            }
        }
        (p, q)
    }
}

/// `(p, q) = ` parity of the columns.
struct Encode<'a> {
    p: *mut u8,
    q: *mut u8,
    last: *const u8,
    others: &'a [Option<&'a [u8]>],
}

impl<L: Lanes> Operation<L> for Encode<'_> {
    #[inline(always)]
    unsafe fn step<S: Span, const N: usize>(&self, at: usize, span: S) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            let (p, q) = syndromes::<L, S, N>(self.last, self.others, at, span);
            p.store(span, self.p.add(at));
            q.store(span, self.q.add(at));
        }
        true
    }
}

/// `first + rest == 0`?
struct Cancel<'a> {
    first: *const u8,
    rest: &'a [&'a [u8]],
}

impl<L: Lanes> Operation<L> for Cancel<'_> {
    #[inline(always)]
    unsafe fn step<S: Span, const N: usize>(&self, at: usize, span: S) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sum = Block::<L, N>::load(span, self.first.add(at));
            for source in self.rest {
                sum = sum.xor(Block::load(span, source.as_ptr().add(at)));
            }
            sum.is_zero()
        }
    }
}

/// `p += delta` (if there is a `p`) and `q += factor * delta`, where `delta` is the sum of one or two slices.
struct Fold<L: Lanes, const HAS_P: bool, const SLICES: usize> {
    p: *mut u8,
    q: *mut u8,
    delta: [*const u8; SLICES],
    factor: L::Factor,
}

impl<L: Lanes, const HAS_P: bool, const SLICES: usize> Operation<L> for Fold<L, HAS_P, SLICES> {
    #[inline(always)]
    unsafe fn step<S: Span, const N: usize>(&self, at: usize, span: S) -> bool {
        // SAFETY: the caller's promise; `p` is touched only if there is one.
        unsafe {
            let mut delta = Block::<L, N>::load(span, self.delta[0].add(at));
            for slice in &self.delta[1..] {
                delta = delta.xor(Block::load(span, slice.add(at)));
            }
            if HAS_P {
                let p = self.p.add(at);
                delta.xor(Block::load(span, p)).store(span, p);
            }
            let q = self.q.add(at);
            delta.times(self.factor).xor(Block::load(span, q)).store(span, q);
        }
        true
    }
}

/// `dst = factor * (first + rest)`.
struct ScaledSum<'a, L: Lanes> {
    dst: *mut u8,
    first: *const u8,
    rest: &'a [&'a [u8]],
    factor: L::Factor,
}

impl<L: Lanes> Operation<L> for ScaledSum<'_, L> {
    #[inline(always)]
    unsafe fn step<S: Span, const N: usize>(&self, at: usize, span: S) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sum = Block::<L, N>::load(span, self.first.add(at));
            for source in self.rest {
                sum = sum.xor(Block::load(span, source.as_ptr().add(at)));
            }
            sum.times(self.factor).store(span, self.dst.add(at));
        }
        true
    }
}

/// `data *= factor`.
struct Scale<L: Lanes> {
    data: *mut u8,
    factor: L::Factor,
}

impl<L: Lanes> Operation<L> for Scale<L> {
    #[inline(always)]
    unsafe fn step<S: Span, const N: usize>(&self, at: usize, span: S) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            let data = self.data.add(at);
            Block::<L, N>::load(span, data).times(self.factor).store(span, data);
        }
        true
    }
}

/// `(px, qx) = (a, px + a)` with `a = p_factor * px + q_factor * qx`.
struct SolveTwo<L: Lanes> {
    px: *mut u8,
    qx: *mut u8,
    p_factor: L::Factor,
    q_factor: L::Factor,
}

impl<L: Lanes> Operation<L> for SolveTwo<L> {
    #[inline(always)]
    unsafe fn step<S: Span, const N: usize>(&self, at: usize, span: S) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            let px = Block::<L, N>::load(span, self.px.add(at));
            let qx = Block::<L, N>::load(span, self.qx.add(at));
            let a = px.times(self.p_factor).xor(qx.times(self.q_factor));
            a.store(span, self.px.add(at));
            a.xor(px).store(span, self.qx.add(at));
        }
        true
    }
}

/// The operations of [`crate::kernel::Operations`] on registers `L`, up to `N` at a time.
///
/// # Safety
/// All functions: the processor has the features of `L`, and all slices of a call have the same length.
pub(crate) struct Vectors<L, const N: usize>(std::marker::PhantomData<L>);

#[allow(clippy::missing_safety_doc, reason = "it stands at the type, once")]
impl<L: Lanes, const N: usize> Vectors<L, N> {
    #[inline(always)]
    pub(crate) unsafe fn xor(dst: &mut [u8], sources: &[&[u8]]) {
        let [first, rest @ ..] = sources else { return dst.fill(0) };
        let operation = Sum { dst: dst.as_mut_ptr(), first: first.as_ptr(), rest };
        // SAFETY: every pointer comes from a slice of this length (caller).
        unsafe { run::<L, _, N>(&operation, 0, dst.len()) };
    }

    #[inline(always)]
    pub(crate) unsafe fn xor_into(dst: &mut [u8], sources: &[&[u8]]) {
        let pointer = dst.as_mut_ptr();
        let operation = Sum { dst: pointer, first: pointer, rest: sources };
        // SAFETY: every pointer comes from a slice of this length (caller).
        unsafe { run::<L, _, N>(&operation, 0, dst.len()) };
    }

    #[inline(always)]
    pub(crate) unsafe fn pq(p: &mut [u8], q: &mut [u8], columns: &[Option<&[u8]>]) {
        let Some((last, others)) = split_last(columns) else { return zero_both(p, q) };
        let operation = Encode { p: p.as_mut_ptr(), q: q.as_mut_ptr(), last, others };
        // SAFETY: every pointer comes from a slice of this length (caller).
        unsafe { run::<L, _, N>(&operation, 0, p.len()) };
    }

    #[inline(always)]
    pub(crate) unsafe fn update_p(p: &mut [u8], old: &[u8], new: &[u8]) {
        let pointer = p.as_mut_ptr();
        // Of two sources, which the compiler knows: no loop over sources is left.
        let operation = Sum { dst: pointer, first: pointer, rest: [old, new] };
        // SAFETY: every pointer comes from a slice of this length (caller).
        unsafe { run::<L, _, N>(&operation, 0, p.len()) };
    }

    #[inline(always)]
    pub(crate) unsafe fn accumulate_q(q: &mut [u8], data: &[u8], factor: u8) {
        // SAFETY: the caller's promise.
        unsafe { Self::fold::<false, 1>(&mut [], q, [data], factor) }
    }

    #[inline(always)]
    pub(crate) unsafe fn accumulate_pq(p: &mut [u8], q: &mut [u8], data: &[u8], factor: u8) {
        // SAFETY: the caller's promise.
        unsafe { Self::fold::<true, 1>(p, q, [data], factor) }
    }

    #[inline(always)]
    pub(crate) unsafe fn update_q(q: &mut [u8], old: &[u8], new: &[u8], factor: u8) {
        // SAFETY: the caller's promise.
        unsafe { Self::fold::<false, 2>(&mut [], q, [old, new], factor) }
    }

    #[inline(always)]
    pub(crate) unsafe fn update_pq(p: &mut [u8], q: &mut [u8], old: &[u8], new: &[u8], factor: u8) {
        // SAFETY: the caller's promise.
        unsafe { Self::fold::<true, 2>(p, q, [old, new], factor) }
    }

    /// Without `HAS_P`, `p` is not used.
    #[inline(always)]
    unsafe fn fold<const HAS_P: bool, const SLICES: usize>(
        p: &mut [u8],
        q: &mut [u8],
        delta: [&[u8]; SLICES],
        factor: u8,
    ) {
        let mut pointers = [std::ptr::null(); SLICES];
        for (pointer, slice) in pointers.iter_mut().zip(delta) {
            *pointer = slice.as_ptr();
        }
        // SAFETY: every pointer that is used comes from a slice of this length (caller).
        unsafe {
            let factor = L::factor(factor);
            let operation =
                Fold::<L, HAS_P, SLICES> { p: p.as_mut_ptr(), q: q.as_mut_ptr(), delta: pointers, factor };
            run::<L, _, N>(&operation, 0, q.len());
        }
    }

    #[inline(always)]
    pub(crate) unsafe fn scaled_sum(dst: &mut [u8], sources: &[&[u8]], factor: u8) {
        let [first, rest @ ..] = sources else { return dst.fill(0) };
        // SAFETY: every pointer comes from a slice of this length (caller).
        unsafe {
            let factor = L::factor(factor);
            let operation = ScaledSum::<L> { dst: dst.as_mut_ptr(), first: first.as_ptr(), rest, factor };
            run::<L, _, N>(&operation, 0, dst.len());
        }
    }

    #[inline(always)]
    pub(crate) unsafe fn scale(data: &mut [u8], factor: u8) {
        // SAFETY: the pointer comes from a slice of this length.
        unsafe {
            let operation = Scale::<L> { data: data.as_mut_ptr(), factor: L::factor(factor) };
            run::<L, _, N>(&operation, 0, data.len());
        }
    }

    #[inline(always)]
    pub(crate) unsafe fn solve_two(px: &mut [u8], qx: &mut [u8], p_factor: u8, q_factor: u8) {
        // SAFETY: both pointers come from slices of this length (caller).
        unsafe {
            let (p_factor, q_factor) = (L::factor(p_factor), L::factor(q_factor));
            let operation = SolveTwo::<L> { px: px.as_mut_ptr(), qx: qx.as_mut_ptr(), p_factor, q_factor };
            run::<L, _, N>(&operation, 0, px.len());
        }
    }

    #[inline(always)]
    pub(crate) unsafe fn cancels(sources: &[&[u8]]) -> bool {
        let [first, rest @ ..] = sources else { return true };
        let operation = Cancel { first: first.as_ptr(), rest };
        // SAFETY: every pointer comes from a slice of this length (caller).
        unsafe { run::<L, _, N>(&operation, 0, first.len()) }
    }
}

/// The last column that is present, and those before it; none if no column is present.
#[inline(always)]
fn split_last<'a>(columns: &'a [Option<&'a [u8]>]) -> Option<(*const u8, &'a [Option<&'a [u8]>])> {
    let last = columns.iter().rposition(Option::is_some)?;
    Some((columns[last]?.as_ptr(), &columns[..last]))
}

#[inline(always)]
fn zero_both(p: &mut [u8], q: &mut [u8]) {
    p.fill(0);
    q.fill(0);
}

/// Defines the module's `OPERATIONS`: the functions of [`Vectors`] compiled with the processor features
/// `$features`, on registers `$lanes`, `$n` at a time (`$pq` where a block needs twice as many sums).
macro_rules! vector_operations {
    ($lanes:ty, $features:literal, $n:literal, $pq:literal) => {
        vector_operations! { @define $lanes, $features;
            xor($n)(dst: &mut [u8], sources: &[&[u8]]) -> ();
            xor_into($n)(dst: &mut [u8], sources: &[&[u8]]) -> ();
            pq($pq)(p: &mut [u8], q: &mut [u8], columns: &[Option<&[u8]>]) -> ();
            update_p($n)(p: &mut [u8], old: &[u8], new: &[u8]) -> ();
            accumulate_q($pq)(q: &mut [u8], data: &[u8], factor: u8) -> ();
            accumulate_pq($pq)(p: &mut [u8], q: &mut [u8], data: &[u8], factor: u8) -> ();
            update_q($pq)(q: &mut [u8], old: &[u8], new: &[u8], factor: u8) -> ();
            update_pq($pq)(p: &mut [u8], q: &mut [u8], old: &[u8], new: &[u8], factor: u8) -> ();
            scaled_sum($pq)(dst: &mut [u8], sources: &[&[u8]], factor: u8) -> ();
            scale($pq)(data: &mut [u8], factor: u8) -> ();
            solve_two($pq)(px: &mut [u8], qx: &mut [u8], p_factor: u8, q_factor: u8) -> ();
            cancels($n)(sources: &[&[u8]]) -> bool;
        }
    };
    (@define $lanes:ty, $features:literal;
     $($name:ident($n:literal)($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        pub(crate) static OPERATIONS: $crate::kernel::Operations = $crate::kernel::Operations { $($name),* };
        $(
            /// # Safety
            /// All slices have the same length.
            #[target_feature(enable = $features)]
            unsafe fn $name($($argument: $type),*) -> $result {
                // SAFETY: the attribute names the features that the registers need; the lengths are the
                // caller's.
                unsafe { $crate::vector::Vectors::<$lanes, $n>::$name($($argument),*) }
            }
        )*
    };
}
pub(crate) use vector_operations;
