//! Corrections that are interrupted, repeated, and made side by side.

use futures_util::FutureExt;

use super::scripted_store::{CascadedPermit, Fate};
use crate::error::AdjustError;
use crate::store::Adjusted;

#[tokio::test]
async fn two_holders_give_back_once() {
    let story = CascadedPermit::of_one().await;
    story.meets(&[Fate::Later]);
    let mut first = Box::pin(story.lease.give_back());
    assert!((&mut first).now_or_never().is_none());
    assert_eq!(story.lease.give_back().await.unwrap(), Adjusted::default());
    first.await.unwrap();
    assert_eq!(story.consumed("tpm").0, 0);
}

#[tokio::test]
async fn cancelled_adjust_may_keep_tokens_and_gains_none() {
    let story = CascadedPermit::of_one().await;
    story.meets(&[Fate::Hangs, Fate::Hangs]);
    assert!(story.lease.give_back().now_or_never().is_none());
    assert!(story.lease.adjust("tpm", 5).now_or_never().is_none());
    story.lease.give_back().await.unwrap();
    assert_eq!(story.consumed("tpm").0, 60);

    story.lease.adjust("tpm", 5).await.unwrap();
    assert_eq!(story.left(), [95]);
    story.lease.give_back().await.unwrap();
    assert_eq!(story.consumed("tpm").0, 60);
}

#[tokio::test]
async fn failed_refund_can_be_made_again() {
    let story = CascadedPermit::of_one().await;
    story.meets(&[Fate::Contended, Fate::Contended]);
    for _ in 0..2 {
        assert!(matches!(story.lease.give_back().await, Err(AdjustError::Contended)));
        assert_eq!(story.left(), [40]);
    }
    story.lease.give_back().await.unwrap();
    assert_eq!(story.consumed("tpm").0, 0);
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
            let story = CascadedPermit::of_two().await;
            story.meets(&[fate, fate]);
            for _ in 0..2 {
                let error = story.lease.adjust("tpm", by).await.unwrap_err();
                assert!(of_parent(&error).may_be_repeated() && error.may_be_repeated());
                assert_eq!(story.consumed("tpm").0, 60 + by, "{fate:?}");
                assert_eq!(story.left()[0], 40 - by);
            }
            story.lease.adjust("tpm", by).await.unwrap();
            assert_eq!(story.consumed("tpm"), (60 + by, 60 + by), "{fate:?}");
            assert_eq!(story.left(), [40 - by, 40 - by]);
            assert_eq!(story.corrected(), ["child", "parent", "parent", "parent"], "{fate:?}");
            story.lease.adjust("tpm", by).await.unwrap();
            assert_eq!(story.consumed("tpm"), (60 + 2 * by, 60 + 2 * by), "{fate:?}: a new one");
            story.lease.give_back().await.unwrap();
            assert_eq!(story.consumed("tpm"), (0, 0), "{fate:?}");
        }
    }
}

#[tokio::test]
async fn another_amount_takes_the_place_of_the_one_that_failed() {
    for (fate, writes) in [(Fate::Contended, 4), (Fate::Cut, 5), (Fate::Lost, 5)] {
        let story = CascadedPermit::of_two().await;
        story.meets(&[fate]);
        story.lease.adjust("tpm", 5).await.unwrap_err();
        story.lease.adjust("rpm", 1).await.unwrap();
        assert_eq!(story.consumed("rpm"), (1, 1), "another limit is another matter");
        assert_eq!(story.corrected().len(), 4);
        story.lease.adjust("tpm", 8).await.unwrap();
        assert_eq!(story.consumed("tpm"), (68, 68), "{fate:?}");
        assert_eq!(story.corrected().len() + 2, writes, "{fate:?}");

        story.meets(&[fate]);
        story.lease.adjust("tpm", 5).await.unwrap_err();
        story.lease.adjust("tpm", 0).await.unwrap();
        assert_eq!(story.consumed("tpm"), (68, 68), "{fate:?}: called off");
        story.lease.give_back().await.unwrap();
        assert_eq!((story.consumed("tpm"), story.consumed("rpm")), ((0, 0), (0, 0)), "{fate:?}");
    }
}

#[tokio::test]
async fn a_repeated_release_gives_each_bucket_its_own_back() {
    for fate in [Fate::Contended, Fate::Cut] {
        let story = CascadedPermit::of_two().await;
        story.meets(&[Fate::Lost, fate, fate]);
        story.lease.adjust("tpm", 5).await.unwrap_err();
        // First the debit whose answer was lost is settled, then everything goes back.
        let error = story.lease.give_back().await.unwrap_err();
        assert!(of_parent(&error).may_be_repeated());
        assert_eq!(story.consumed("tpm"), (0, 65));
        story.lease.give_back().await.unwrap_err();
        story.lease.give_back().await.unwrap();
        assert_eq!(story.consumed("tpm"), (0, 0), "{fate:?}");
        story.lease.adjust("tpm", 3).await.unwrap();
        assert_eq!(story.consumed("tpm"), (3, 3), "{fate:?}: no bucket is ahead any more");
    }
}

#[tokio::test]
async fn ambiguous_refund_of_one_bucket_counts_as_made() {
    let story = CascadedPermit::of_two().await;
    story.meets(&[Fate::Forgotten]);
    let error = story.lease.adjust("tpm", -5).await.unwrap_err();
    assert!(matches!(of_parent(&error), AdjustError::Ambiguous(_)) && !error.may_be_repeated());
    story.lease.adjust("tpm", 3).await.unwrap();
    assert_eq!(story.consumed("tpm"), (58, 58));
    story.meets(&[Fate::Forgotten]);
    story.lease.give_back().await.unwrap_err();
    story.corrected();
    story.lease.give_back().await.unwrap();
    assert_eq!((story.consumed("tpm"), story.corrected()), ((0, 0), vec![]));
}

#[tokio::test]
async fn cancelled_debit_can_be_completed_and_gains_no_refund() {
    for fate in [Fate::Hangs, Fate::HangsAfter] {
        let story = CascadedPermit::of_two().await;
        story.meets(&[fate]);
        assert!(story.lease.adjust("tpm", 5).now_or_never().is_none());
        assert_eq!(story.consumed("tpm").0, 65);
        story.lease.adjust("tpm", 5).await.unwrap();
        assert_eq!(story.consumed("tpm"), (65, 65), "{fate:?}");

        let landed = if fate == Fate::HangsAfter { 5 } else { 0 };
        story.meets(&[fate]);
        assert!(story.lease.adjust("tpm", -5).now_or_never().is_none());
        story.lease.adjust("tpm", -5).await.unwrap();
        assert_eq!(story.consumed("tpm"), (60, 65 - landed), "{fate:?}");
        story.lease.give_back().await.unwrap();
        assert_eq!(story.consumed("tpm"), (0, 5 - landed), "{fate:?}");
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
        let story = CascadedPermit::of_two().await;
        story.meets(&fates);
        let (five, three) =
            tokio::join!(story.lease.adjust("tpm", 5), story.lease.adjust("tpm", 3));
        assert_eq!(story.consumed("tpm"), reached, "{fates:?}");
        for (result, by) in [(five, 5), (three, 3)] {
            if result.is_err() {
                story.lease.adjust("tpm", by).await.unwrap();
            }
        }
        assert_eq!(story.consumed("tpm"), (68, 68), "{fates:?}");
        story.lease.adjust("tpm", 1).await.unwrap();
        assert_eq!(story.consumed("tpm"), (69, 69), "{fates:?}");
    }
}
