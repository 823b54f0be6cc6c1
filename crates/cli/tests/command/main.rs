//! The `pinstripe` binary as its users run it, over files in a temporary folder.

mod control;
mod life;
mod nbd;
mod occupied;
mod refusals;
mod world;
