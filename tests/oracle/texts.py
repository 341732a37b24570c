"""Natural texts of several kinds, written for these tests: what the engine's logits are judged on."""

TEXTS = {
    "story": """\
The lighthouse had been dark for eleven years when Marta walked up the path with a lantern in one hand and a bag of
tools in the other. Nobody in the village believed that it could be repaired. The lens was cracked, they said, and the
stairs had rotted through, and in any case the ships had better instruments now. She had listened politely to all of
it, paid for her bread, and gone on. The door gave way at the third push. Inside, the air smelled of salt and old oil,
and a gull that had made its home on the landing looked at her with one yellow eye and did not move. "Good evening,"
said Marta. "I am not going to hurt you. I only want to see whether the clockwork still turns." She climbed slowly,
testing each step with her boot before she trusted it, and where a step was missing she laid a plank across the gap and
tied it down with rope. It took her most of an hour to reach the top. From there she could see the whole bay: the
harbour with its row of white houses, the long grey line of the breakwater, and beyond it the rocks that the fishermen
called the Sisters, on which her father's boat had been lost in the winter after the light went out. She put the
lantern down on the iron floor, opened the bag, and began to clean the brass wheels one tooth at a time. By midnight
the largest of them moved. By two in the morning all of them did, and when she let go of the weight the whole machine
began to tick, slowly at first and then with an even beat, like an animal that has slept for a very long time and
remembers, little by little, how to breathe. She laughed out loud, and the gull, far below, answered her.
""",
    "encyclopedia": """\
A glacier is a persistent body of dense ice that moves under its own weight. Glaciers form where more snow falls in a
year than melts, usually over many decades or centuries. The lower layers are pressed into ice, and once the mass is
thick enough it begins to flow downhill, carving valleys and carrying rock with it. About ten percent of the land
surface of the Earth is covered by glaciers today. Most of that ice lies in Antarctica and Greenland, and together
these two sheets hold about two thirds of the fresh water of the planet.
""",
    "dialogue": """\
<|im_start|>user
My bicycle makes a clicking noise every time I turn the pedals. What could it be?<|im_end|>
<|im_start|>assistant
A clicking noise that follows the pedals usually comes from one of three places: a loose pedal, a worn bottom bracket,
or a stiff link in the chain. Start with the pedals, because they are the easiest to check. Take each of them off,
clean the thread, put a little grease on it, and tighten it again. If the noise is still there, turn the cranks
backwards slowly and watch the chain as it passes over the rear wheels.<|im_end|>
""",
    "python": '''\
import heapq


def shortest_paths(graph, source):
    """Returns the distance from `source` to every node that can be reached."""
    distances = {source: 0}
    queue = [(0, source)]
    while queue:
        distance, node = heapq.heappop(queue)
        if distance > distances[node]:
            continue
        for neighbour, weight in graph[node].items():
            candidate = distance + weight
            if candidate < distances.get(neighbour, float("inf")):
                distances[neighbour] = candidate
                heapq.heappush(queue, (candidate, neighbour))
    return distances
''',
    "markup": """\
<!DOCTYPE html>
<html lang="en">
  <head>
    <meta charset="utf-8">
    <title>Opening hours</title>
    <link rel="stylesheet" href="style.css">
  </head>
  <body>
    <h1>Opening hours</h1>
    <ul>
      <li>Monday to Friday: 9:00 to 18:00</li>
      <li>Saturday: 10:00 to 14:00</li>
    </ul>
    <p>Please <a href="contact.html">contact us</a> if you have any questions.</p>
  </body>
</html>
""",
    "french": """\
Le matin, la place du marché est encore vide quand les premiers camions arrivent. On décharge les caisses de pommes, de
poireaux et de fromages, on plante les parasols, on se salue en soufflant dans ses mains. Vers huit heures, les clients
commencent à venir : d'abord les plus âgés, qui connaissent chaque vendeur par son prénom, puis les familles. À midi,
il ne reste plus que quelques salades et l'odeur du café.
""",
    "german": """\
Wer im Winter durch den Wald geht, hört zuerst nur die eigenen Schritte. Erst wenn man stehen bleibt, merkt man, dass die
Stille aus vielen kleinen Geräuschen besteht: dem Knacken eines Astes, dem Ruf einer Meise, dem Schnee, der von den
Zweigen rutscht. Mein Großvater sagte immer, der Wald schlafe nicht, er höre nur zu.
""",
    "russian": """\
Осенью в деревне рано темнеет. Люди возвращаются с полей, топят печи и садятся за стол. За окном идёт дождь, а в доме
тепло и пахнет хлебом. Дети просят бабушку рассказать сказку, и она рассказывает им о старом мельнике.
""",
    "chinese": """\
春天来了,天气慢慢变暖。公园里的花都开了,孩子们在草地上跑来跑去。老人坐在长椅上喝茶、下棋,谈论今年的收成。
我每天早上都会去那里散步,然后去图书馆看书。
""",
    "numbers": """\
Month,Sales,Costs,Profit
January,1200,850,350
February,1350,900,450
March,1500,975,525
April,1425,940,485
May,1600,1010,590
June,1750,1100,650

1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048
3.14159265358979, 2.71828182845905, 1.41421356237310
2 + 2 = 4, 3 * 7 = 21, 100 / 4 = 25, 2^10 = 1024
""",
}
