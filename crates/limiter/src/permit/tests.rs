//! Corrections that are interrupted, repeated, and made side by side.

use futures_util::FutureExt;
use sluicegate_core::fixtures::name;
use sluicegate_core::{Amounts, Millitokens};

use super::scripted_store::{Fate, ScriptedPermit};
use crate::error::AdjustError;
use crate::store::Adjusted;

#[tokio::test]
async fn two_holders_give_back_once() {
    let case = ScriptedPermit::of_one_bucket().await;
    case.meets(&[Fate::Later]);
    let mut first = Box::pin(case.permit.give_back());
    assert!((&mut first).now_or_never().is_none());
    assert_eq!(case.permit.give_back().await.unwrap(), Adjusted::default());
    first.await.unwrap();
    assert_eq!(case.consumed("tpm").0, 0);
}

#[tokio::test]
async fn cancelled_adjust_may_keep_tokens_and_gains_none() {
    let case = ScriptedPermit::of_one_bucket().await;
    case.meets(&[Fate::Hangs, Fate::Hangs]);
    assert!(case.permit.give_back().now_or_never().is_none());
    assert!(case.permit.adjust("tpm", 5).now_or_never().is_none());
    case.permit.give_back().await.unwrap();
    assert_eq!(case.consumed("tpm").0, 60);

    case.permit.adjust("tpm", 5).await.unwrap();
    assert_eq!(case.left(), [95]);
    case.permit.give_back().await.unwrap();
    assert_eq!(case.consumed("tpm").0, 60);
}

#[tokio::test]
async fn failed_refund_can_be_made_again() {
    let case = ScriptedPermit::of_one_bucket().await;
    case.meets(&[Fate::Contended, Fate::Contended]);
    for _ in 0..2 {
        assert!(matches!(case.permit.give_back().await, Err(AdjustError::Contended)));
        assert_eq!(case.left(), [40]);
    }
    case.permit.give_back().await.unwrap();
    assert_eq!(case.consumed("tpm").0, 0);
}

fn of_parent(error: &AdjustError) -> &AdjustError {
    match error {
        AdjustError::Partial { corrected, failed, source } => {
            assert_eq!((corrected.as_str(), failed.as_str()), ("child", "parent"));
            source
        }
        other => panic!("{other:?}"),
    }
}

const REPEATABLE: [Fate; 3] = [Fate::Contended, Fate::Cut, Fate::Lost];

#[tokio::test]
async fn a_repeated_adjust_corrects_each_bucket_once() {
    for fate in REPEATABLE {
        for by in [5, -5] {
            if by < 0 && fate == Fate::Lost {
                // The store answers "ambiguous" to those.
                continue;
            }
            let case = ScriptedPermit::of_two_buckets().await;
            case.meets(&[fate, fate]);
            for _ in 0..2 {
                let error = case.permit.adjust("tpm", by).await.unwrap_err();
                assert!(of_parent(&error).may_be_repeated() && error.may_be_repeated());
                assert_eq!(case.consumed("tpm").0, 60 + by, "{fate:?}");
                assert_eq!(case.left()[0], 40 - by);
            }
            case.permit.adjust("tpm", by).await.unwrap();
            assert_eq!(case.consumed("tpm"), (60 + by, 60 + by), "{fate:?}");
            assert_eq!(case.left(), [40 - by, 40 - by]);
            assert_eq!(case.corrected(), ["child", "parent", "parent", "parent"], "{fate:?}");
            case.permit.adjust("tpm", by).await.unwrap();
            assert_eq!(case.consumed("tpm"), (60 + 2 * by, 60 + 2 * by), "{fate:?}: a new one");
            case.permit.give_back().await.unwrap();
            assert_eq!(case.consumed("tpm"), (0, 0), "{fate:?}");
        }
    }
}

#[tokio::test]
async fn another_amount_takes_the_place_of_the_one_that_failed() {
    for (fate, writes) in [(Fate::Contended, 4), (Fate::Cut, 5), (Fate::Lost, 5)] {
        let case = ScriptedPermit::of_two_buckets().await;
        case.meets(&[fate]);
        case.permit.adjust("tpm", 5).await.unwrap_err();
        case.permit.adjust("rpm", 1).await.unwrap();
        assert_eq!(case.consumed("rpm"), (1, 1), "another limit is another matter");
        assert_eq!(case.corrected().len(), 4);
        case.permit.adjust("tpm", 8).await.unwrap();
        assert_eq!(case.consumed("tpm"), (68, 68), "{fate:?}");
        assert_eq!(case.corrected().len() + 2, writes, "{fate:?}");

        case.meets(&[fate]);
        case.permit.adjust("tpm", 5).await.unwrap_err();
        case.permit.adjust("tpm", 0).await.unwrap();
        assert_eq!(case.consumed("tpm"), (68, 68), "{fate:?}: called off");
        case.permit.give_back().await.unwrap();
        assert_eq!((case.consumed("tpm"), case.consumed("rpm")), ((0, 0), (0, 0)), "{fate:?}");
    }
}

#[tokio::test]
async fn a_repeated_release_gives_each_bucket_its_own_back() {
    for fate in [Fate::Contended, Fate::Cut] {
        let case = ScriptedPermit::of_two_buckets().await;
        case.meets(&[Fate::Lost, fate, fate]);
        case.permit.adjust("tpm", 5).await.unwrap_err();
        // First the debit whose answer was lost is settled, then everything goes back.
        let error = case.permit.give_back().await.unwrap_err();
        assert!(of_parent(&error).may_be_repeated());
        assert_eq!(case.consumed("tpm"), (0, 65));
        case.permit.give_back().await.unwrap_err();
        case.permit.give_back().await.unwrap();
        assert_eq!(case.consumed("tpm"), (0, 0), "{fate:?}");
        case.permit.adjust("tpm", 3).await.unwrap();
        assert_eq!(case.consumed("tpm"), (3, 3), "{fate:?}: no bucket is ahead any more");
    }
}

#[tokio::test]
async fn ambiguous_refund_of_one_bucket_counts_as_made() {
    let case = ScriptedPermit::of_two_buckets().await;
    case.meets(&[Fate::Forgotten]);
    let error = case.permit.adjust("tpm", -5).await.unwrap_err();
    assert!(matches!(of_parent(&error), AdjustError::Ambiguous(_)) && !error.may_be_repeated());
    case.permit.adjust("tpm", 3).await.unwrap();
    assert_eq!(case.consumed("tpm"), (58, 58));
    case.meets(&[Fate::Forgotten]);
    case.permit.give_back().await.unwrap_err();
    case.corrected();
    case.permit.give_back().await.unwrap();
    assert_eq!((case.consumed("tpm"), case.corrected()), ((0, 0), vec![]));
}

#[tokio::test]
async fn cancelled_debit_can_be_completed_and_gains_no_refund() {
    for fate in [Fate::Hangs, Fate::HangsAfter] {
        let case = ScriptedPermit::of_two_buckets().await;
        case.meets(&[fate]);
        assert!(case.permit.adjust("tpm", 5).now_or_never().is_none());
        assert_eq!(case.consumed("tpm").0, 65);
        case.permit.adjust("tpm", 5).await.unwrap();
        assert_eq!(case.consumed("tpm"), (65, 65), "{fate:?}");

        let landed = if fate == Fate::HangsAfter { 5 } else { 0 };
        case.meets(&[fate]);
        assert!(case.permit.adjust("tpm", -5).now_or_never().is_none());
        case.permit.adjust("tpm", -5).await.unwrap();
        assert_eq!(case.consumed("tpm"), (60, 65 - landed), "{fate:?}");
        case.permit.give_back().await.unwrap();
        assert_eq!(case.consumed("tpm"), (0, 5 - landed), "{fate:?}");
    }
}

#[tokio::test]
async fn calls_side_by_side_do_not_disturb_one_another() {
    for (fates, reached) in [
        ([Fate::ContendedLater, Fate::Later], (68, 63)),
        ([Fate::Later, Fate::ContendedLater], (68, 65)),
        ([Fate::ContendedLater, Fate::ContendedLater], (68, 60)),
        ([Fate::Later, Fate::Later], (68, 68)),
    ] {
        let case = ScriptedPermit::of_two_buckets().await;
        case.meets(&fates);
        let (five, three) =
            tokio::join!(case.permit.adjust("tpm", 5), case.permit.adjust("tpm", 3));
        assert_eq!(case.consumed("tpm"), reached, "{fates:?}");
        for (result, by) in [(five, 5), (three, 3)] {
            if result.is_err() {
                case.permit.adjust("tpm", by).await.unwrap();
            }
        }
        assert_eq!(case.consumed("tpm"), (68, 68), "{fates:?}");
        case.permit.adjust("tpm", 1).await.unwrap();
        assert_eq!(case.consumed("tpm"), (69, 69), "{fates:?}");
    }
}

#[tokio::test]
async fn correction_to_the_actual_amounts_is_one_write_for_each_bucket() {
    let amounts = |tpm, rpm| {
        let of = |limit, tokens| (name(limit), Millitokens::from_tokens(tokens).unwrap());
        Amounts::from([of("tpm", tpm), of("rpm", rpm)])
    };
    for fate in [None, Some(Fate::Contended), Some(Fate::Cut)] {
        let case = ScriptedPermit::of_two_buckets().await;
        case.meets(fate.as_slice());
        case.permit.adjust("rpm", 3).await.map_or_else(drop, drop);
        case.meets(fate.as_slice());
        // Fewer of one limit and more of the other.
        if let Err(error) = case.permit.correct_to(&amounts(45, 2)).await {
            assert!(error.may_be_repeated() && fate.is_some(), "{fate:?}: {error:?}");
            case.permit.correct_to(&amounts(45, 2)).await.unwrap();
        }
        assert_eq!((case.consumed("tpm"), case.consumed("rpm")), ((45, 45), (2, 2)), "{fate:?}");
        case.corrected();
        case.permit.correct_to(&amounts(45, 2)).await.unwrap();
        assert_eq!(case.corrected().len(), 0, "nothing to correct");
        case.permit.correct_to(&amounts(50, 0)).await.unwrap();
        assert_eq!(case.corrected(), ["child", "parent"]);
        assert_eq!((case.consumed("tpm"), case.consumed("rpm")), ((50, 50), (0, 0)), "{fate:?}");
        case.permit.give_back().await.unwrap();
        assert_eq!((case.consumed("tpm"), case.consumed("rpm")), ((0, 0), (0, 0)), "{fate:?}");
    }
}

/// The store did all of it, or nothing, and the caller repeats: each limit is corrected once.
#[tokio::test]
async fn mixed_correction_is_made_once() {
    let amounts = |tpm, rpm| {
        let of = |limit, tokens| (name(limit), Millitokens::from_tokens(tokens).unwrap());
        Amounts::from([of("tpm", tpm), of("rpm", rpm)])
    };
    for fate in [Fate::Cut, Fate::Lost, Fate::Contended] {
        let case = ScriptedPermit::of_one_bucket().await;
        case.meets(&[fate, fate]);
        for _ in 0..2 {
            case.permit.correct_to(&amounts(45, 2)).await.unwrap_err();
        }
        case.permit.correct_to(&amounts(45, 2)).await.unwrap();
        assert_eq!((case.consumed("tpm").0, case.consumed("rpm").0), (45, 2), "{fate:?}");
    }
    // The store can no longer tell, when the write is sent again: it counts as made.
    let case = ScriptedPermit::of_one_bucket().await;
    case.meets(&[Fate::Lost, Fate::Forgotten]);
    for _ in 0..2 {
        case.permit.correct_to(&amounts(45, 2)).await.unwrap_err();
    }
    case.corrected();
    case.permit.correct_to(&amounts(45, 2)).await.unwrap();
    assert_eq!((case.consumed("tpm").0, case.consumed("rpm").0), (45, 2));
    assert!(case.corrected().is_empty(), "nothing is left to correct");
    // The caller leaves: what was on its way back counts as given back, and nothing as taken.
    for fate in [Fate::Hangs, Fate::HangsAfter] {
        let case = ScriptedPermit::of_one_bucket().await;
        case.meets(&[fate]);
        assert!(case.permit.correct_to(&amounts(45, 2)).now_or_never().is_none());
        let before = case.consumed("rpm").0;
        case.permit.adjust("rpm", 5).await.unwrap();
        assert_eq!(case.consumed("rpm").0, before + 5, "{fate:?}");
    }
}

fn amounts<const N: usize>(amounts: [(&str, i64); N]) -> Amounts {
    amounts.map(|(limit, tokens)| (name(limit), Millitokens::from_tokens(tokens).unwrap())).into()
}

/// A correction that takes of one limit and gives back of another is not sent a third time after
/// its caller left: the second attempt may have given the tokens back.
#[tokio::test]
async fn a_mixed_correction_that_was_left_gives_nothing_back_twice() {
    let case = ScriptedPermit::of_one_bucket().await;
    case.meets(&[Fate::Cut, Fate::HangsAfter]);
    let to = amounts([("tpm", 45), ("rpm", 2)]);
    case.permit.correct_to(&to).await.unwrap_err();
    assert!(case.permit.correct_to(&to).now_or_never().is_none());
    // The bucket forgets the second attempt.
    for _ in 0..4 {
        let limiter = &case.permit.limiter;
        limiter.acquire("child", "r").consume("rpm", 1).no_cascade().await.unwrap();
    }
    case.permit.correct_to(&to).await.unwrap();
    assert_eq!(case.consumed("tpm").0, 45);
}

/// An earlier write turns out to be ambiguous. The call that finds this out makes its own change.
#[tokio::test]
async fn an_ambiguous_earlier_write_does_not_stand_for_the_new_one() {
    let case = ScriptedPermit::of_one_bucket().await;
    case.meets(&[Fate::Cut, Fate::Forgotten]);
    case.permit.correct_to(&amounts([("tpm", 45), ("rpm", 2)])).await.unwrap_err();
    let error = case.permit.give_back().await.unwrap_err();
    assert!(matches!(error, AdjustError::Ambiguous(_)), "{error:?}");
    assert_eq!((case.consumed("tpm").0, case.consumed("rpm").0), (0, 0));
}

#[tokio::test]
async fn a_negative_total_corrects_nothing() {
    let case = ScriptedPermit::of_one_bucket().await;
    let error = case.permit.correct_to(&amounts([("rpm", 2), ("tpm", -1)])).await.unwrap_err();
    assert!(error.to_string().starts_with("tpm is negative: name what was used"), "{error}");
    assert_eq!((case.consumed("tpm").0, case.consumed("rpm").0), (60, 0));
}

/// If one of several limits is unknown, the others are corrected, and the call succeeds: an error
/// would make its caller correct them again.
#[tokio::test]
async fn an_unknown_limit_beside_a_known_one_is_dropped() {
    let case = ScriptedPermit::of_one_bucket().await;
    let adjusted = case.permit.adjust_all(&amounts([("tpm", 5), ("typo", 1)])).await.unwrap();
    assert_eq!(adjusted.dropped, [name("typo")]);
    assert_eq!(case.consumed("tpm").0, 65);
    let error = case.permit.adjust_all(&amounts([("typo", 1)])).await.unwrap_err();
    assert!(matches!(error, AdjustError::InvalidRequest(_)), "{error:?}");
}
