import numpy as np
import pytest

from repper.heads.scores import Score, knn_accuracy, knn_votes, score, summarize


def client(number, train, tested, correct):
    return Score(number, "linear", *(np.array(row) for row in (train, tested, correct)))


def test_a_score_counts_per_class():
    labels, predicted = np.array([0, 0, 2, 2, 2]), np.array([0, 1, 2, 2, 0])
    result = score(3, "svm", np.array([4, 0, 9]), labels, predicted)
    assert result.tested.tolist() == [2, 0, 3]
    assert result.correct.tolist() == [1, 0, 2]
    assert result.accuracy == 60
    assert result.balanced == pytest.approx((50 + 200 / 3) / 2)


def test_head_and_tail_are_above_and_below_the_median_of_the_classes_held():
    one = client(0, [0, 1, 5, 9], [4, 2, 2, 4], [4, 0, 1, 3])
    # The class it holds no image of is neither; the median of 1, 5, 9 is 5.
    assert one.tail_classes == 0
    assert one.head_classes == 75


def test_no_tail_where_all_classes_are_equally_large():
    one = client(0, [5, 5], [2, 2], [1, 2])
    assert one.tail_classes is None
    assert one.head_classes is None
    assert summarize([one])["tail_classes"] is None


def test_summary_by_hand():
    scores = [
        client(0, [10, 1], [8, 2], [8, 0]),  # 80 %, balanced 50
        client(1, [1, 3], [1, 1], [0, 1]),  # 50 %, balanced 50
        client(2, [5, 0], [30, 0], [30, 0]),  # 100 %, balanced 100
    ]
    summary = summarize(scores)
    assert summary["mean"] == pytest.approx(230 / 3)
    assert summary["std"] == pytest.approx(np.std([80, 50, 100]))
    assert summary["worst"] == summary["worst_tenth"] == 50
    assert summary["weighted"] == pytest.approx(100 * 39 / 42)
    assert summary["balanced"] == pytest.approx(200 / 3)
    assert summary["head_classes"] == 100
    assert summary["tail_classes"] == 0


def test_worst_tenth_is_the_mean_of_the_worst_tenth():
    scores = [client(n, [1], [100], [50 + n]) for n in range(30)]
    assert summarize(scores)["worst_tenth"] == pytest.approx(51)


@pytest.mark.parametrize(
    ("clients", "worst"), [(4, 1), (14, 1), (15, 2), (16, 2), (19, 2), (25, 2)]
)
def test_a_tenth_of_the_clients_is_rounded_and_at_least_one(clients, worst):
    scores = [client(n, [1], [100], [50 + n]) for n in range(clients)]
    assert summarize(scores)["worst_tenth"] == pytest.approx(50 + (worst - 1) / 2)


def test_classes_that_a_client_does_not_hold_do_not_move_its_median():
    # Over all seven classes the median would be 0, and no class below it.
    one = client(0, [0, 0, 0, 0, 10, 5, 1], [1, 1, 1, 1, 4, 4, 4], [0, 0, 0, 0, 4, 2, 1])
    assert one.tail_classes == 25
    assert one.head_classes == 100


def test_knn_by_hand():
    memory = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    labels = np.array([0, 0, 1, 1])
    queries = np.array([[5.0, 1.0], [1.0, 5.0], [1.0, 0.2]])
    assert knn_accuracy(memory, labels, queries, np.array([0, 1, 1]), k=2) == pytest.approx(200 / 3)
    # Of four neighbours two vote for each class: the nearest decides.
    assert knn_accuracy(memory, labels, queries, np.array([0, 1, 0]), k=4) == 100
    # So it does where the others of its class are the farthest.
    angles = np.linspace(0, 1, 10)
    ten, far = np.stack([np.cos(angles), np.sin(angles)], 1), np.array([0, *[1] * 5, *[0] * 4])
    assert knn_votes(ten, far, ten[:1], k=10).tolist() == [0]
    # A class that is not in the memory can only be missed.
    assert knn_accuracy(memory, labels, queries, np.array([7, 7, 7]), k=1) == 0


def test_many_queries_vote_as_each_would_alone(monkeypatch):
    random = np.random.default_rng(0)
    memory, queries = random.random((50, 8)), random.random((70, 8))
    labels = random.integers(0, 4, 50)
    whole = knn_votes(memory, labels, queries)
    monkeypatch.setattr("repper.heads.scores.AT_ONCE", 16)
    assert (knn_votes(memory, labels, queries) == whole).all()
    assert len(knn_votes(memory, labels, queries[:0])) == 0


def test_clients_without_test_images_do_not_count():
    untested, tested = client(0, [3, 1], [0, 0], [0, 0]), client(1, [3, 1], [4, 0], [3, 0])
    assert untested.accuracy is None
    assert untested.balanced is None
    assert summarize([untested, tested])["mean"] == 75
    assert set(summarize([untested]).values()) == {None}
