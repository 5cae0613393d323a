//! A recorded turn: what its request asks for, what is asked of the engine instead, and what
//! its replies say in tokens.

mod ask;
mod made;
mod piece;
mod rejoin;

pub use ask::TurnAsk;
pub use made::Made;
pub use piece::{Piece, Shown};
pub use rejoin::Rejoin;
