"""The words of the bundled sentences, as plain tables; `scenes.py` reads them, `wording.py` puts them into words.

A concept is its names, which mean the same, divided by `/`: car/automobile. Its first character gives the
article:

    car      countable, one: a car, the car            +roses      countable, many: roses, the roses
    ~bread   cannot be counted: bread, the bread       =my uncle   exactly as written (=+two boys: many)

`NOUNS` are groups of related concepts, and `@name` stands for a whole group. `TIMES` are groups of times; the
last word before the colon is their tense. A line of `TOPICS` is one action (an indented line continues the
one above):

    family | names of the action | objects | who=actors | where=places | how=manners | when=times | flags

Actions of one family are related, also across topics. Without who, where, how or when, an action takes its
topic's; `-` is none. `!` marks a name without a passive. The flags: `long` lasts for hours and is a habit;
`once` is over in a moment, so nobody sees it going on; `mutual` means the same when actor and object swap.
"""

NOUNS = """
adults: man/guy, woman/lady, old man/elderly man, old woman/elderly woman, young man, young woman,
    =+two women, +men
children: boy/little boy, girl/little girl, child/kid, +children/kids, =+two boys, =+three girls,
    teenager/teen
family: =my mother/my mom, =my father/my dad, =my grandmother/my grandma, =my grandfather/my grandpa,
    =my sister, =my uncle
friends: neighbor, =an old friend, =my best friend, +friends
cooks: cook/chef, baker, waiter, waitress
musicians: musician, singer/vocalist, pianist/piano player, violinist/violin player, drummer, street musician
athletes: athlete, runner, soccer player, tennis player, coach/trainer, goalkeeper/goalie
pets: dog, cat, puppy, kitten, rabbit/bunny, hamster, parrot
wild animals: fox, squirrel, bear, deer, wolf, monkey, elephant, tiger, lion, owl
farm animals: cow, goat, sheep, pig, horse, donkey, chicken/hen, duck, goose
herds: +cows/cattle, +goats, +pigs, +chickens/hens, +horses, +ducks, +geese, +lambs
drivers: driver/motorist, taxi driver/cab driver, cyclist/bike rider, truck driver/trucker, bus driver,
    delivery driver
vehicles: car/automobile, truck/lorry, bus, taxi/cab, van, motorcycle/motorbike, fire truck/fire engine,
    police car
cycles: bicycle/bike, scooter, unicycle, tricycle
teachers: teacher/schoolteacher, professor, tutor
learners: student, pupil, +students, schoolboy, schoolgirl, classmate
office people: manager, secretary, employee, accountant, lawyer/attorney, intern, director
gardeners: gardener, landscaper
sellers: shopkeeper/store owner, saleswoman, cashier, butcher, florist
buyers: customer/shopper, tourist
travelers: traveler, passenger, hiker, backpacker, pilot, flight attendant, tour guide
medics: doctor/physician, nurse, dentist, surgeon, paramedic
patients: patient, pregnant woman, injured man, sick child
makers: programmer/software developer, engineer, technician, mechanic, electrician, carpenter, plumber
farmers: farmer, farm worker/farmhand, shepherd
seafarers: sailor/seaman, fisherman, captain/skipper, diver, surfer, lifeguard
artists: artist, painter, photographer, sculptor, actor, dancer
rescuers: firefighter/fireman, paramedic
police: police officer/cop, detective, security guard
crooks: thief, burglar, robber, suspect

vegetables: +onions, +carrots, +potatoes, +tomatoes, +mushrooms, cucumber, pepper, cabbage, pumpkin
fruit: +apples, +oranges, banana, +pears, +strawberries, melon, pineapple, +cherries, lemon, +grapes
dishes: ~soup, ~rice, stew, ~pasta, ~spaghetti, omelet, +noodles, ~chicken, ~fish
pastry: cake, pie, +cookies, +muffins, ~bread, +pancakes, pizza
hot drinks: ~coffee, ~tea, ~hot chocolate/cocoa
cold drinks: ~orange juice, ~milk, ~water, lemonade, ~beer, ~red wine
tableware: +dishes, +glasses, +cups, +plates, pan/frying pan, pot, +forks
strings: guitar, violin/fiddle, cello, harp, banjo, ukulele
winds: flute, trumpet, saxophone/sax, clarinet, trombone
keys: piano, organ, accordion
drums: +drums, tambourine, xylophone
vocals: song, lullaby, folk song, love song, hymn
music: =jazz, =classical music, symphony, =rock music, opera
ball games: =soccer, =tennis, =basketball, =volleyball, =baseball, =handball, =badminton
board games: =chess, =checkers, card game/game of cards, board game
matches: game/match, race, tournament, final
heights: mountain, hill, cliff, ladder
clothes: shirt, sweater/pullover, dress, skirt, +pants/trousers, scarf, hat
outerwear: coat, jacket, raincoat
footwear: +shoes, +boots, +sneakers, +sandals
reading: book, novel, story, poem, magazine, newspaper/paper
writings: letter, essay, report, speech, diary
sciences: =math/mathematics, =history, =physics, =biology, =chemistry, =geography
languages: =French, =Spanish, =Japanese, =Italian
problems: problem, puzzle, riddle, equation
papers: contract/agreement, invoice, form, budget, application
machines: printer, copier/photocopier, washing machine/washer, dishwasher, refrigerator/fridge, coffee machine
electronics: computer, laptop/notebook computer, phone/telephone, tablet, camera, television/TV, radio
software: program/piece of software, app/application for the phone, website/web page, database,
    video game/computer game
flowers: +roses, +tulips, +sunflowers, +lilies, +daisies
trees: tree, apple tree, oak/oak tree, pine/pine tree, +bushes/shrubs, hedge
crops: ~wheat, ~corn/maize, +beans, ~rice, +pumpkins, ~hay
furniture: sofa/couch, chair, table, bed, shelf, desk, wardrobe/closet
rooms: =the kitchen, =the bathroom, =the bedroom, =the garage, =the living room, =the attic
openings: door, window, gate, drawer
lights: lamp, candle, flashlight/torch
jewelry: ring, necklace, +earrings, bracelet, watch/wristwatch
bags: bag, suitcase, backpack/rucksack, purse/handbag, basket, box
sights: museum, castle, temple, cathedral, palace, art gallery, zoo
rides: plane/airplane, train, ferry, bus, ship
lodging: hotel room, flight, cabin/hut, =a table in a restaurant/a table at a restaurant
medicines: pill, ~cough syrup, vitamin, painkiller
injuries: wound, broken arm, burn, sprained ankle, infection, fever
boats: boat, sailboat, canoe, rowboat, yacht
sea animals: ~fish, crab, lobster, +shrimp, octopus
sea sights: +dolphins, +whales, +seagulls/gulls, +waves, +seals, +turtles
pictures: portrait, landscape/landscape painting, picture, watercolor
views: sunset, rainbow, old bridge, waterfall, lighthouse
films: movie/film, documentary, cartoon, soccer game, thriller
robots: robot, drone, machine, toy car
structures: house, bridge, wall, tower, shed, fence, barn
"""

TIMES = """
daytime any: in the morning, in the afternoon, in the evening, at noon/at midday
dayparts any: in the morning, in the afternoon, in the evening, at night/during the night, at noon/at midday
early any: before sunrise/before dawn, after sunset/after dark, at dawn/at daybreak
past past: yesterday, last week, two days ago, last night, on Monday, last Sunday, a month ago
future future: tomorrow, next week, tonight, next Saturday, in a few days/in a couple of days
seasons simple: in summer/in the summer, in winter/in the winter, in spring, in the fall/in autumn
durations lasting: all day/the whole day, for hours/for several hours, all morning/the whole morning,
    for a long time
habits simple: every day/each day, every weekend/on weekends, every Sunday/on Sundays, twice a week
meals any: before breakfast, after lunch, before dinner, after dinner
rain past: while it was raining/as the rain fell, when the storm came,
    after the rain had stopped/once the rain was over
light past: while the sun was setting/as the sun went down, when it got dark/when darkness fell
guests past: before the guests arrived/before the visitors came,
    while everybody else was asleep/when all the others slept
school past: after the bell rang, before the lesson began/before the class started,
    while the others were talking
work past: because the boss had asked for it, before the meeting began/before the meeting started,
    although it was late
travel past: because the train was late/because the train was delayed, before the trip began,
    when the bus finally came
shops past: because there was a sale/because prices were low, before the shop closed/before closing time
care past: because the pain got worse/because it hurt more and more, after the accident/after the crash
waves past: although the sea was rough/although the waves were high, when the tide went out,
    before the wind got stronger
harvest past: before the first frost came, because the weather was good/because the weather was fine
crowd past: while the crowd was cheering/as the audience cheered,
    before the show began/before the show started
alarm past: when the alarm went off/when the alarm sounded, before help arrived/before anybody could help
"""

TOPICS = """
== kitchen
who: @adults, @family, @cooks
where: in the kitchen, in the restaurant, at home
when: @daytime, @meals, @past, @future, @guests
how: quickly/in a hurry, carefully/with great care, cheerfully/in a good mood
cut | chop/cut up | @vegetables, ~meat, +herbs | long
cut | slice | ~bread, ~cheese, ~ham, @fruit
cut | peel | +potatoes, +carrots, @fruit
cut | grate | ~cheese, +carrots, cucumber, ~chocolate
heat | cook/prepare | @dishes, =dinner, =lunch | long
heat | fry | +eggs, ~fish, ~bacon, +mushrooms, ~chicken
heat | bake | @pastry | long
heat | boil | ~water, +eggs, +potatoes, +noodles
heat | grill/barbecue | +sausages, ~fish, steak, ~chicken, ~corn/maize
    | where=in the backyard/in the yard, on the terrace, in the park
eat | eat | @dishes, @fruit, @pastry, sandwich | who=@adults, @children, @family
eat | taste/try | @dishes, ~sauce, ~cheese
drink | drink | @hot drinks, @cold drinks | who=@adults, @family
serve | serve | @dishes, @hot drinks, @pastry, dessert
clean | wash/clean | @tableware | long
clean | dry | @tableware
stir | stir/mix | ~soup, ~sauce, ~dough, ~batter
stir | season | ~soup, ~sauce, ~meat, salad
pour | pour | @hot drinks, @cold drinks | how=carefully/with great care, slowly

== music
who: @adults, @children, @musicians
where: on stage/on the stage, in the concert hall, in the park, on the street, in the living room
when: @dayparts, @past, @future, @crowd, @light
how: beautifully, quietly/softly, loudly, with great passion/passionately
perform | play | @strings, @winds, @keys, @drums | long
voice | sing/perform | @vocals | long
voice | hum | lullaby, song, folk song
write | write/compose | @vocals, symphony, opera | how=quickly/in a hurry, slowly
    | where=at home, in the studio
rehearse | rehearse/practice | @vocals, symphony, dance | where=at home, in the studio,
    on stage/on the stage | long | how=-
listen | !listen to | @music, radio, @vocals | who=@adults, @children, @family
    | where=in the living room, in the car, at home | how=quietly/in silence | long
tune | tune | guitar, violin/fiddle, cello, piano, harp | how=carefully/with great care
dance | dance | - | who=@adults, @children, dancer | where=at the party, on stage/on the stage,
    on the street, in the ballroom | how=beautifully, slowly, wildly | long
applaud | clap/applaud | - | who=@adults, @children | how=loudly, wildly | when=@past, @crowd
trade | buy/purchase | @strings, @winds, piano, concert ticket | where=in the music store/in the music shop,
    online | how=- | when=@past, @future | once

== sports
who: @adults, @children, @athletes
where: in the park, in the stadium/at the stadium, at the gym/in the gym, on the beach
when: @dayparts, @past, @future, @light, @rain
how: well/skillfully, with great energy/energetically
compete | play | @ball games | long | where=in the park, in the stadium/at the stadium, on the beach
win | win | @matches | how=easily/without effort | where=in the stadium/at the stadium
    | when=@past, @future | once
win | lose | @matches | how=- | where=in the stadium/at the stadium | when=@past, @future | once
ball | throw | ball, frisbee, baseball, stone/rock | how=hard, far | where=in the park, on the beach
ball | kick | ball, soccer ball, can | how=hard, far | where=in the park, on the street, on the beach
ball | catch | ball, frisbee, baseball | how=easily/without effort | where=in the park, on the beach
run | run/jog | - | where=in the park, along the river, through the forest/through the woods, on the beach
    | how=slowly, fast/quickly | long
swim | swim | - | where=in the lake, in the pool/in the swimming pool, in the river
    | how=slowly, fast/quickly | long
winter sports | ski | - | where=in the mountains, down the hill | how=slowly, fast/quickly, well/skillfully
    | when=@dayparts, @past, in winter/in the winter | long
winter sports | skate | - | where=on the frozen lake, on the ice, at the ice rink
    | how=slowly, fast/quickly, well/skillfully | when=@dayparts, @past, in winter/in the winter | long
climb | climb | @heights, wall | who=@adults, @children, athlete | where=- | how=slowly, quickly/fast
ride | ride | @cycles | who=@adults, @children | where=in the park, along the river, on the street
    | how=slowly, fast/quickly | long
train | lift | +weights | who=@adults, athlete | where=at the gym/in the gym
    | how=easily/without effort, slowly | long
train | stretch/do stretching exercises | - | who=@adults, @athletes
    | where=at the gym/in the gym, in the park, on the beach | how=slowly | long
watch | watch | @matches | who=@adults, @children, @family | where=in the stadium/at the stadium,
    on television/on TV | how=quietly/in silence, with great excitement/excitedly
board | play | @board games | who=@adults, @children, @family | where=in the living room, in the park,
    at the club | how=quietly/in silence, well/skillfully | long

== animals
who: dog, cat, puppy, kitten, fox, rabbit/bunny, squirrel, deer, wolf, monkey
where: in the garden, in the meadow, in the forest/in the woods, by the river/beside the river,
    behind the house
when: @dayparts, @early, @past, @rain, @light
how: quickly/fast, slowly, quietly/silently
chase | chase/!run after | dog, cat, puppy, kitten, fox, monkey, goat, goose, rabbit/bunny, squirrel, deer,
    +birds, +ducks, +chickens/hens | who=dog, cat, puppy, kitten, fox, wolf, monkey, goat, donkey, goose
chase | follow | dog, cat, puppy, kitten, fox, wolf, monkey, goat, donkey, goose, deer
    | who=dog, cat, puppy, kitten, fox, wolf, monkey, goat, donkey, goose
chase | attack | rabbit/bunny, deer, +sheep, +birds, +chickens/hens, +ducks, dog, fox, wolf
    | who=fox, wolf, bear, dog, tiger, lion, owl
chase | bite | dog, cat, =my neighbor, fox, wolf | who=dog, cat, wolf, fox, monkey | how=-
watch | watch/observe | dog, cat, puppy, kitten, fox, wolf, monkey, owl, rabbit/bunny, squirrel, deer,
    +birds, +ducks | how=quietly/silently, attentively/with attention | long
    | who=dog, cat, puppy, kitten, fox, wolf, monkey, goat, donkey, goose, owl
touch | lick | kitten, puppy, =my hand, bowl, bone | who=dog, cat, puppy, kitten | how=-
touch | sniff/!smell at | bone, +flowers, puppy, shoe | who=dog, cat, puppy, fox, rabbit/bunny | how=-
eat | eat | ~grass, carrot, +leaves, +nuts, lettuce | who=rabbit/bunny, hamster, squirrel, deer, elephant,
    monkey
drink | drink | ~water, ~milk | who=dog, cat, puppy, kitten, fox, deer, lion
care | feed | @pets, +birds | who=@adults, @children, @family | how=-
    | where=in the garden, at home, behind the house | long
care | pet/stroke | dog, cat, puppy, kitten, rabbit/bunny, horse | who=@adults, @children, @family
    | how=gently/with a gentle hand | where=in the garden, at home, on the sofa/on the couch
care | brush/comb | dog, cat, horse, rabbit/bunny | who=@adults, @children, @family
    | how=gently/with a gentle hand | where=in the garden, at home, in the barn
care | wash/bathe | dog, cat, horse, elephant | who=@adults, @family, +children/kids
    | how=gently/with a gentle hand | where=in the garden, in the river
care | walk | dog, puppy | who=@adults, @children, @family | how=slowly
    | where=in the park, along the river, in the forest/in the woods | long
rest | sleep | - | how=quietly/silently, deeply/soundly | where=on the sofa/on the couch, under the tree,
    in the sun, in the hay | long | who=dog, cat, puppy, kitten, rabbit/bunny, fox
rest | lie | - | how=lazily, quietly/silently | where=on the sofa/on the couch, under the tree, in the sun,
    in the grass | long | who=dog, cat, puppy, kitten, rabbit/bunny, fox
run | jump/leap | - | who=dog, cat, kitten, rabbit/bunny, squirrel, monkey, deer, tiger
    | how=suddenly/all of a sudden, high | where=over the fence, across the stream, over the wall
run | run | - | how=quickly/fast, suddenly/all of a sudden | where=through the snow, across the field,
    through the forest/through the woods | who=dog, cat, puppy, rabbit/bunny, fox, deer, wolf, squirrel, horse
noise | bark | - | who=dog, puppy, =+the dogs | how=loudly, angrily
    | where=in the yard/in the backyard, behind the fence, at the door | long
hide | hide | - | how=quietly/silently | who=dog, cat, kitten, fox, rabbit/bunny, squirrel, monkey, deer
    | where=behind the tree, in the bushes, in the cave, under the bridge
dig | dig | hole, tunnel | who=dog, rabbit/bunny, fox, puppy | how=quickly/fast
    | where=in the garden, under the fence, in the sand

== traffic
who: @adults, @drivers
where: on the street, in front of the station, downtown/in the city center, near the bridge
when: @dayparts, @past, @future, @rain, @travel
how: slowly, carefully/with great care, fast/at high speed
drive | drive | @vehicles | who=man/guy, woman/lady, young man, young woman, old man/elderly man, =my uncle,
    =my sister, mechanic | where=through the city/through the town, on the highway/on the freeway,
    over the bridge | long
drive | park | @vehicles | who=man/guy, woman/lady, young woman, old man/elderly man, =my uncle, mechanic,
    waiter | how=carefully/with great care, badly | where=in front of the station, behind the house,
    on the street
ride | ride | bicycle/bike, motorcycle/motorbike, scooter | who=@adults, @children, student
    | where=through the city/through the town, on the street, over the bridge | long
repair | repair/fix | @vehicles, @cycles | who=@adults, mechanic, @family
    | where=in the garage, on the street, in the workshop | how=quickly/in no time,
    carefully/with great care | long
clean | wash/clean | @vehicles, bicycle/bike | where=in front of the house, in the garage, on the street
    | how=quickly/in no time, thoroughly | long
cross | cross | street/road, bridge, river, square | who=@adults, @children, @drivers | where=-
    | how=slowly, quickly/in a hurry, carefully/with great care
wait | !wait for | bus, train, taxi/cab, streetcar/tram, ambulance | who=@adults, @children, @family
    | where=on the street, in front of the station, at the corner, in the rain
    | how=patiently/with patience, nervously | long
overtake | overtake/pass | @vehicles | who=@vehicles | where=on the highway/on the freeway, on the bridge,
    in the tunnel | how=slowly, fast/at high speed
overtake | follow | @vehicles | who=@vehicles | where=through the city/through the town,
    on the highway/on the freeway, over the bridge | how=slowly
crash | hit/!crash into | @vehicles, tree, wall, traffic light | who=@vehicles, @drivers
    | where=on the highway/on the freeway, on the street, near the bridge
    | when=@past, @rain, at night/during the night | how=hard | once
stop | stop/come to a halt | - | who=@vehicles, @drivers | where=at the traffic light,
    in front of the station, in the middle of the street | how=suddenly/all of a sudden
honk | honk | - | who=@drivers | where=at the traffic light, in the traffic jam,
    in the middle of the street | how=loudly, angrily | long
block | block | street/road, bridge, entrance, crossing | who=@vehicles, fallen tree, flock of sheep
    | how=- | where=- | long
load | load | truck/lorry, van, trailer | where=in front of the house, at the warehouse, on the street | long

== school
who: @teachers, @learners
where: in the classroom, at school, in the library
when: @daytime, @past, @future, @school
how: quickly/in no time, carefully/with great care, patiently/with patience
explain | explain | @problems, poem, @sciences, rule | who=@teachers
    | how=patiently/with patience, clearly/in a clear way
explain | teach | @sciences, @languages | who=@teachers | how=patiently/with patience, well
    | where=at school, at the university | long
learn | learn/study | @sciences, @languages, poem | who=@learners, @children | how=eagerly/with enthusiasm
    | where=at school, in the library, at home | long
read | read | @reading, essay | who=@teachers, @learners, @children
    | how=aloud/out loud, quietly/in silence | long
write | write | @writings, poem, story, test/exam | who=@learners, @children
    | how=quickly/in no time, carefully/with great care
solve | solve | @problems | who=@learners, @teachers | how=quickly/in no time, easily/without help
solve | answer | question, =+all the questions, riddle | who=@learners, @teachers
    | how=quickly/in no time, correctly
grade | correct/grade | essay, test/exam, +papers, ~homework | who=@teachers
    | how=quickly/in no time, carefully/with great care
exam | pass | test/exam, driving test | who=@learners | how=easily/without effort | when=@past, @future
    | once | where=-
exam | fail | test/exam, driving test | who=@learners | how=- | when=@past | once | where=-
depict | draw/sketch | tree, map, circle, face, horse, house | who=@learners, @children
    | how=quickly/in no time, carefully/with great care
discuss | discuss/!talk about | @reading, @problems, test/exam | who=+students, =+the two teachers,
    =+two boys, =+three girls | how=loudly, quietly/in a low voice | long
help | help/assist | @learners, @teachers | who=@teachers, @learners | how=patiently/with patience
praise | praise | @learners | who=@teachers, =the principal | how=warmly
praise | scold | @learners | who=@teachers, =the principal | how=loudly, angrily
talk | chat/talk | - | who=+students, =+two boys, =+three girls, =+two teachers
    | where=in the classroom, in the schoolyard, in the library | how=loudly, quietly/in a low voice | long

== office
who: @office people
where: in the office/at the office, in the meeting room, on the third floor
when: @daytime, @past, @future, @work
how: quickly/in a hurry, carefully/with great care
send | send | email, letter, @papers, package/parcel
send | forward/pass on | email, invoice, report, complaint
write | write/draft | email, report, contract/agreement, speech, letter | long
read | read | email, report, contract/agreement, letter, application
sign | sign | contract/agreement, letter, form, check | how=quickly/in a hurry, without reading it
copy | print/print out | @papers, report, email, ticket
copy | copy/photocopy | @papers, report, letter
meet | organize/arrange | meeting, conference, workshop, office party | how=well
meet | cancel/call off | meeting, conference, business trip | how=suddenly/at short notice | where=- | once
meet | attend/!take part in | meeting, conference, workshop, training course | how=- | where=-
phone | call/phone | client, supplier, @office people | how=-
phone | answer | phone/telephone, email | how=politely/in a polite way
staff | hire/employ | @office people, engineer, programmer/software developer | how=- | where=-
    | who=manager, director, =the company | when=@past, @future | once
staff | fire/dismiss | @office people, engineer | how=suddenly/at short notice | where=-
    | who=manager, director, =the company | when=@past, @future | once
staff | interview | candidate, @office people, engineer | who=@office people, reporter/journalist
    | how=politely/in a polite way
praise | praise | @office people | how=warmly
use | use | computer, printer, copier/photocopier, calculator | how=- | long
repair | repair/fix | printer, copier/photocopier, computer, coffee machine
    | who=technician, engineer, employee, intern
check | check/!go over | @papers, report, +figures | how=carefully/with great care, twice | long
rest | take a break | - | how=- | where=in the office/at the office, in the cafeteria,
    in front of the building

== garden
who: @adults, @family, @gardeners
where: in the garden, behind the house, in the park, in front of the house
when: @daytime, @past, @future, @harvest, in spring, in summer/in the summer
how: carefully/with great care, slowly, cheerfully/in a good mood
plant | plant | @flowers, @trees, +tomatoes, +strawberries
plant | grow | @flowers, @vegetables, +strawberries, +herbs | how=- | long
    | when=in spring, in summer/in the summer, @past
water | water | @flowers, @vegetables, =the lawn/the grass, +plants | long
pick | pick | @flowers, +apples, +cherries, +strawberries, +pears, +tomatoes
trim | trim/cut back | hedge, +bushes/shrubs, apple tree, +roses
trim | mow/cut | =the lawn/the grass | how=slowly, quickly/in no time
trim | cut down/fell | tree, oak/oak tree, pine/pine tree, apple tree | how=quickly/in no time
dig | dig | hole, pond, ditch, well | how=quickly/in no time, slowly
rake | rake/sweep up | +leaves, =+the dead leaves | long
weed | pull out/remove | +weeds, =+the old roots | long
build | build/put up | fence, shed, birdhouse, tree house, greenhouse
    | how=quickly/in no time, carefully/with great care
paint | paint | fence, bench, shed, gate, birdhouse
rest | sit | - | how=quietly/in silence, lazily | where=under the tree, on the bench, in the sun,
    in the garden | long | who=@adults, @family, @children
rest | rest/take a rest | - | how=quietly/in silence | where=under the tree, on the bench, in the shade
    | who=@adults, @family, @gardeners
play outside | play | - | who=@children | how=happily/joyfully, noisily
    | where=in the garden, behind the house, in the sandbox, in the park | long

== weather
who: =it
where: in the village, in the mountains, in the city/in the town, on the coast, over the valley
when: @dayparts, @past, @future, @early, @seasons, in November
how: heavily/hard, without a break/nonstop
rain | rain | - | long
rain | drizzle/rain lightly | - | how=- | long
snow | snow | - | long | when=@dayparts, @past, in winter/in the winter, in December
snow | hail | - | how=heavily/hard | when=@past, in the afternoon, in the evening
wind | blow | - | who= =the wind, =a cold wind/an icy wind, =a warm breeze, =a strong wind
    | how=hard, gently/softly | long
sun | shine | - | who= =the sun | how=brightly, warmly | when=@dayparts, @past, @future,
    in summer/in the summer | long
storm | hit/strike | coast, village, city/town, island, harbor/port
    | who=storm, hurricane, blizzard/snowstorm, =a flood | where=- | how=hard, suddenly/all of a sudden
storm | destroy | bridge, @structures, harvest, =+many houses | who=storm, hurricane, =a flood, tornado,
    earthquake | where=on the coast, in the village, in the city/in the town | how=completely/totally
    | when=@past
cover | cover | =+the fields, =+the roofs, valley, city/town, =+the mountains | who=~snow, ~fog/mist, ~ice
    | how=completely/totally | where=-
thunder | rumble | - | who= =the thunder | how=loudly, in the distance/far away
    | where=in the mountains, over the valley, over the sea | long | when=@dayparts, @past, @early
freeze | freeze/freeze over | - | who=lake, river, pond, canal | how=completely/totally
    | where=in the village, in the mountains, in the city/in the town
    | when=@past, in winter/in the winter, in December
cool | get cold/turn cold | - | how=suddenly/all of a sudden | where=in the village, in the mountains,
    in the city/in the town, on the coast
cool | get warm/warm up | - | how=suddenly/all of a sudden, slowly
    | where=in the village, in the mountains, in the city/in the town, on the coast
    | when=@past, @future, in spring, in summer/in the summer

== shopping
who: @adults, @buyers, @family
where: in the store/in the shop, at the market, in the mall/in the shopping center
when: @daytime, @past, @future, @shops
how: quickly/in a hurry, happily/with a smile
trade | buy/purchase | @clothes, @footwear, @outerwear, @jewelry, @bags, @furniture, @fruit
trade | sell | @clothes, @footwear, @jewelry, @fruit, @flowers, @furniture
    | who=@sellers, old woman/elderly woman, man/guy | how=- | long
trade | pay for | @clothes, @footwear, @fruit, =+the groceries | how=in cash/with cash, by card/with a card
trade | order | pizza, @clothes, @furniture, @electronics | where=online/on the internet,
    in the store/in the shop | how=-
trade | return/take back | @clothes, @footwear, @electronics | how=-
    | where=in the store/in the shop, in the mall/in the shopping center
try on | try on | @clothes, @footwear, @outerwear, ring, necklace | how=quickly/in a hurry,
    happily/with a smile
choose | choose/pick out | @clothes, @jewelry, wedding dress, birthday present
    | how=carefully/with great care, quickly/in a hurry
choose | !look for | @clothes, @footwear, birthday present, @furniture | how=- | long
move | carry | basket, bag, box, crate of apples | how=slowly, easily/without effort
move | push | shopping cart, stroller | how=slowly, quickly/in a hurry
wrap | wrap/wrap up | birthday present, vase, +glasses, @flowers | who=@sellers
    | how=carefully/with great care, quickly/in a hurry
serve | serve | customer/shopper, tourist, @adults | who=@sellers | how=politely/in a polite way,
    quickly/in a hurry
greet | greet/!say hello to | customer/shopper, tourist, @adults | who=@sellers
    | how=politely/in a polite way, happily/with a smile
crime | steal | @jewelry, @footwear, @bags, @electronics | who=thief, young man, teenager/teen
    | how=quickly/in no time, without being seen/unnoticed
queue | stand in line/wait in line | - | how=patiently/with patience
    | where=in the store/in the shop, at the market, at the checkout | long

== travel
who: @adults, @travelers, @family
where: in Italy, in the old town, abroad/in a foreign country, by the sea/at the seaside
when: @daytime, @past, @future, @travel, @seasons
how: happily/with a smile, calmly/in a calm way
board | board/!get on | @rides | how=quickly/in a hurry, calmly/in a calm way
    | where=in Italy, abroad/in a foreign country, in the capital
board | !get off | bus, train, ferry, ship | how=quickly/in a hurry, calmly/in a calm way
    | where=in Italy, abroad/in a foreign country, in the capital
board | miss | @rides, connection | how=- | when=@past | once | where=in Italy, abroad/in a foreign country,
    in the capital
book | book/reserve | @lodging, guided tour | where=online/on the internet, by phone/on the phone
    | how=quickly/in a hurry | once
book | cancel/call off | guided tour, flight, trip, @lodging | where=online/on the internet,
    by phone/on the phone | how=suddenly/at short notice | once
visit | visit | @sights, island, =the capital | long
depict | photograph/!take pictures of | @sights, @views, =the skyline
    | how=from a distance/from far away, with a new camera
visit | admire | @sights, @views | how=from a distance/from far away, quietly/in silence
pack | pack | suitcase, backpack/rucksack, bag, tent | where=in the bedroom, in the hotel
    | how=quickly/in a hurry, carefully/with great care
pack | unpack | suitcase, backpack/rucksack, bag, tent | where=in the bedroom, in the hotel
    | how=quickly/in a hurry, slowly
rent | rent/hire | car/automobile, bicycle/bike, boat, cabin/hut, apartment/flat | how=-
    | when=@past, @future | once
explore | explore | island, cave, jungle, =+the old streets, =+the ruins | how=slowly, on foot | where=-
    | long
lose | lose | passport, suitcase, camera, ticket, map | how=- | where=at the airport, on the train, in Italy,
    in the old town | when=@past | once
lose | find | passport, suitcase, hotel, map, wallet | how=quickly/in no time
    | where=at the airport, on the train, in Italy, in the old town | when=@past | once
fly | fly | plane/airplane, helicopter, hot-air balloon | who=pilot, woman/lady, young man, =my uncle
    | where=over the city/over the town, over the ocean/over the sea, across the desert
    | how=calmly/in a calm way | long
fly | land | plane/airplane, helicopter, hot-air balloon | who=pilot, woman/lady, young man, =my uncle
    | where=at the airport, on the island, in a field | how=calmly/in a calm way, safely/without problems
hike | hike/walk | - | where=in the mountains, through the forest/through the woods, along the coast,
    through the desert | how=slowly, with a heavy backpack | long | who=@adults, @family, hiker, backpacker
arrive | arrive | - | where=at the airport, at the hotel, at the border | how=safely/without problems, late
    | when=@past, @future, @dayparts | once
sleep | camp/sleep in a tent | - | where=in the mountains, by the lake/at the lake,
    in the forest/in the woods | how=- | long | who=@adults, @family, hiker, backpacker
guide | guide/lead | =a group of tourists, traveler, hiker | who=tour guide, old man/elderly man, =my uncle
    | where=through the museum, through the old town, across the desert, through the cave
    | how=slowly, safely/without problems

== home
who: @adults, @family, @children
where: at home, in the living room, in the bedroom, upstairs/on the upper floor
when: @dayparts, @meals, @past, @future, @guests
how: quickly/in no time, slowly, quietly/in silence
clean | clean/tidy up | @rooms, =the whole house | where=- | how=quickly/in no time, thoroughly | long
clean | wash | window, ~laundry, +curtains, =the floor | how=quickly/in no time, thoroughly
    | where=at home, in the kitchen, upstairs/on the upper floor
clean | vacuum | carpet/rug, =the floor, sofa/couch | how=quickly/in no time, thoroughly
paint | paint | wall, door, ceiling, @furniture | who=@adults, @family, painter, carpenter
    | where=in the living room, in the bedroom, in the hallway/in the corridor
    | how=slowly, carefully/with great care
repair | repair/fix | lamp, roof, @machines, chair, television/TV | who=@adults, @family, electrician,
    carpenter | how=quickly/in no time, carefully/with great care | where=at home,
    in the basement/in the cellar
watch | watch | @films | where=at home, in the living room, on television/on TV
    | how=quietly/in silence, excitedly/with excitement | long
read | read | @reading | where=at home, in the living room, in the bedroom, on the balcony
    | how=quietly/in silence, aloud/out loud | long
open | open | @openings, letter, package/parcel | how=slowly, quietly/without a sound
open | close/shut | @openings, +curtains | how=slowly, quietly/without a sound
switch | turn on/switch on | lamp, television/TV, radio, @machines | how=-
switch | turn off/switch off | lamp, television/TV, radio, @machines | how=-
laundry | iron | shirt, dress, +pants/trousers, tablecloth | how=carefully/with great care, quickly/in no time
laundry | fold | ~laundry, +towels, +shirts, blanket | how=carefully/with great care, quickly/in no time
sew | knit | sweater/pullover, scarf, hat, +socks | who=@adults, =my grandmother/my grandma,
    =my mother/my mom, =my sister | how=slowly, skillfully/with great skill | long
sew | sew | dress, skirt, +curtains, pillow | who=@adults, =my grandmother/my grandma, =my mother/my mom,
    =my sister | how=slowly, skillfully/with great skill | long
furnish | assemble/put together | shelf, bed, desk, wardrobe/closet | who=@adults, @family, carpenter
    | how=quickly/in no time, without help
furnish | move | @furniture, piano | how=slowly, without help
rest | sleep | - | where=in the bedroom, on the sofa/on the couch, upstairs/on the upper floor,
    in the armchair | how=deeply/soundly, badly | long
rest | sit | - | where=on the sofa/on the couch, in the armchair, by the fire, at the table
    | how=quietly/in silence | long
mood | laugh | - | where=at home, in the living room, in the kitchen | how=loudly, happily/joyfully
mood | cry/weep | - | where=in the bedroom, in the kitchen, upstairs/on the upper floor
    | how=quietly/without a sound, bitterly | long

== health
who: doctor/physician, nurse, surgeon, paramedic
where: in the hospital, in the clinic, in the emergency room
when: @daytime, @past, @future, @care
how: carefully/with great care, quickly/in no time, gently/with gentle hands
examine | examine/check | @patients, @adults, @injuries
examine | measure/take | =the temperature, =the pulse, =the blood pressure
    | how=carefully/with great care, quickly/in no time
treat | treat | @patients, @injuries | long
treat | bandage | wound, broken arm, sprained ankle, burn, knee
treat | operate on | @patients, =the knee, =the heart | who=surgeon, doctor/physician
    | how=carefully/with great care, successfully/with success
treat | pull out/extract | tooth, wisdom tooth | who=dentist | how=carefully/with great care,
    quickly/in no time | where=in the clinic, in the dental office
treat | heal/cure | @patients, infection, fever | how=completely/totally
    | where=in the hospital, in the clinic | when=@past, @future | once
medicate | take/swallow | @medicines | who=@patients, @adults, @family
    | how=with a glass of water, reluctantly | where=in the hospital, at home, in the bathroom | long
medicate | prescribe/order | @medicines, operation, blood test | who=doctor/physician, dentist, surgeon
    | how=- | where=in the clinic, over the phone/by phone
help | help/assist | @patients, @medics | who=@medics, @adults | how=patiently/with patience
help | comfort/console | @patients, @family | who=@medics, @adults | how=kindly, gently/with gentle words
phone | call/phone | doctor/physician, ambulance, nurse, dentist, @family | who=@adults, @patients, @medics
    | how=quickly/in no time, in a panic
move | carry | @patients, stretcher, =the medicine | how=carefully/with great care, quickly/in no time
move | push | wheelchair, hospital bed | how=slowly, carefully/with great care
suffer | cough | - | who=@patients, @adults, @children | where=in the waiting room, in the hospital,
    at home | how=loudly, badly | long
suffer | faint/pass out | - | who=@patients, @adults, @children | where=in the waiting room, in the hospital,
    on the street | how=suddenly/all of a sudden | when=@past | once
wait | wait | - | who=@patients, @adults, @family | where=in the waiting room, in the clinic,
    in front of the hospital | how=patiently/with patience, nervously | long
train | exercise/work out | - | who=@adults, @family | where=at home, in the park, at the gym/in the gym
    | how=regularly/on a regular basis, with great energy/energetically | long

== technology
who: programmer/software developer, engineer, technician, student, teenager/teen, scientist/researcher
where: in the lab/in the laboratory, in the office/at the office, at home, in the workshop
when: @daytime, @past, @future, @work
how: quickly/in no time, carefully/with great care, without help
repair | repair/fix | @electronics, robot, engine, server
software | write | @software, =the code | how=quickly/in no time, without help | long
software | install | @software, update | how=quickly/in no time, without help
software | test | @software, @robots, engine | how=carefully/with great care, again and again/repeatedly
    | long
software | update | @software, =the system | how=- | long
software | delete/erase | file, photo, message, program/piece of software
    | how=accidentally/by accident, quickly/in no time | once
software | download | file, video, app/application for the phone, map, song | how=quickly/in no time
build | build/construct | @robots, computer, engine, telescope | how=quickly/in no time, without help | long
build | design | @robots, website/web page, bridge, engine | how=carefully/with great care, without help
    | long
power | charge | phone/telephone, battery, laptop/notebook computer, electric car | how=-
    | where=in the office/at the office, at home, in the car
power | plug in/connect | @electronics, printer, +speakers | how=quickly/in no time
power | restart/reboot | computer, server, phone/telephone, router
    | how=quickly/in no time, again and again/repeatedly
fly | fly | drone, model airplane | where=in the park, over the field, over the city/over the town
    | how=high, skillfully/with great skill | who=@children, @adults, engineer, student
    | when=@daytime, @past, @future
control | control/operate | @robots, crane, machine | how=skillfully/with great skill,
    from a distance/remotely
play | play | video game/computer game, puzzle game | who=@children, student, programmer/software developer
    | where=at home, in the living room, on the phone | how=eagerly/with enthusiasm, quietly/in silence
    | long | when=@dayparts, @past, @future
measure | measure | =the temperature, =the speed, =the distance, =the voltage
    | how=carefully/with great care, again and again/repeatedly

== farm
who: @farmers, old man/elderly man, young woman, =my grandfather/my grandpa, =my uncle
where: on the farm, in the field, in the barn, near the village
when: @daytime, @early, @past, @future, @harvest
how: quickly/in no time, slowly, without help
care | feed | @herds, =+the cows and pigs, =+the animals | how=- | where=on the farm, in the barn | long
care | milk | +cows/cattle, +goats, cow, goat | where=on the farm, in the barn, in the meadow
    | how=quickly/in no time, by hand | long
care | shear | +sheep, sheep | where=on the farm, in the barn, in the meadow
    | how=quickly/in no time, by hand | when=@past, @future, in spring
herd | herd/drive | @herds, +sheep | where=across the field, into the barn, down the road, over the hill
    | how=slowly, with a dog
herd | count | @herds, +sheep | where=in the barn, in the meadow, near the village
    | how=quickly/in no time, twice
dig | plow/till | field, =the soil/the ground | where=on the farm, near the village, behind the barn
    | how=slowly, with a tractor/using a tractor | long
plant | sow/plant | @crops, +carrots | where=on the farm, in the field, near the village
    | how=by hand, with a tractor/using a tractor
pick | harvest/bring in | @crops, +potatoes, +apples, +grapes | where=on the farm, in the field,
    near the village | how=by hand, quickly/in no time | long
drive | drive | tractor, truck/lorry, combine harvester | where=across the field, down the road,
    through the village | how=slowly, fast/at high speed | long
ride | ride | horse, donkey, pony | who=@children, @farmers, young woman
    | where=across the field, through the forest/through the woods, along the river
    | how=slowly, fast/at high speed | long
collect | collect/gather | +eggs, +apples, ~hay, ~firewood | where=on the farm, in the barn,
    behind the barn | how=quickly/in no time, by hand | long
repair | repair/fix | fence, tractor, barn, gate, roof | how=quickly/in no time, without help
    | where=on the farm, near the village
build | build/put up | fence, barn, stable, windmill | how=quickly/in no time, without help
    | where=on the farm, near the village
graze | graze | - | who=@herds, cow, goat, horse, donkey | where=in the meadow, on the hill,
    by the river/beside the river | how=peacefully/in peace | long
chase | chase/!run after | dog, goose, goat, donkey, horse, =the farmer's cat
    | who=dog, goose, goat, donkey, horse | where=across the field, through the barn, around the house
    | how=quickly/fast

== sea
who: @seafarers, @adults, @children
where: on the beach/at the beach, in the harbor/in the port, on the lake, near the island
when: @dayparts, @early, @past, @future, @waves
how: slowly, calmly/in a calm way, skillfully/with great skill
boat | sail | sailboat, yacht | who=@seafarers, @adults | where=on the lake, near the island, across the bay,
    on the open sea | how=calmly/in a calm way, skillfully/with great skill | long
boat | row/paddle | boat, rowboat, canoe | where=on the lake, across the bay, near the island
    | how=slowly, without a break/nonstop | long
repair | repair/fix | @boats, net, sail, motor | who=@seafarers, @adults
    | where=in the harbor/in the port, on the beach/at the beach | how=quickly/in no time,
    skillfully/with great skill | long
paint | paint | @boats, lighthouse | who=@seafarers, @adults | where=in the harbor/in the port,
    on the beach/at the beach | how=slowly, carefully/with great care
fish | catch | @sea animals, tuna, shark | who=sailor/seaman, fisherman, captain/skipper, @adults
    | how=with a net/using a net, by hand/with bare hands | long | where=in the harbor/in the port,
    near the island, on the open sea
trade | sell | @sea animals, tuna | who=fisherman, old man/elderly man, old woman/elderly woman
    | where=in the harbor/in the port, on the beach/at the beach, at the fish market | how=- | long
swim | swim | - | where=in the sea/in the ocean, in the lake, near the island | how=slowly, fast/quickly
    | long
swim | dive | - | who=diver, @children, young man, young woman | where=in the sea/in the ocean, in the lake,
    near the reef | how=deep, skillfully/with great skill | long
swim | surf | - | who=surfer, teenager/teen, young man, young woman, =my sister
    | where=in the sea/in the ocean, on the big waves, near the island | how=skillfully/with great skill
    | long
build | build | sandcastle, dam of stones, raft | who=@children, @adults
    | how=quickly/in no time, carefully/with great care | where=on the beach/at the beach, near the harbor
collect | collect/gather | +shells, +stones/rocks, ~driftwood, ~seaweed
    | where=on the beach/at the beach, near the harbor, on the island
    | how=slowly, carefully/with great care | long
watch | watch/observe | @sea sights, +boats, sunset | where=on the beach/at the beach,
    in the harbor/in the port, from the cliff | how=quietly/in silence, calmly/in a calm way | long
rescue | rescue/save | swimmer, diver, +dolphins, child/kid, fisherman
    | who=lifeguard, sailor/seaman, diver, =the coast guard, captain/skipper
    | where=in the harbor/in the port, near the island, from the waves
    | how=quickly/in no time, calmly/in a calm way
rest | lie/relax | - | who=@adults, @children | where=on the beach/at the beach, in the sun, in the sand
    | how=lazily, quietly/in silence | long
sink | sink/go under | - | who=@boats, ship, ferry | where=in the harbor/in the port, near the island,
    in the storm | how=slowly, quickly/in no time | when=@past, @waves

== people
who: @adults, @children, @friends
where: at the party, in the park, at the station/at the train station, in the cafe/in the coffee shop
when: @dayparts, @past, @future, @rain, @guests
how: happily/with a smile, quietly/in a low voice
greet | greet/!say hello to | @adults, @children, @friends | how=happily/with a smile,
    politely/in a polite way
greet | !wave to/!wave at | @adults, @children, @friends | how=happily/with a smile,
    from a distance/from far away
greet | hug/embrace | @adults, @children, @friends | how=warmly, happily/with a smile
greet | kiss | =my mother/my mom, @friends, @children | how=gently/tenderly
help | help/assist | @adults, @children, @friends | how=happily/with a smile
greet | thank | @adults, @friends, @children | how=warmly, politely/in a polite way
help | comfort/console | @children, @friends, @adults | how=gently/tenderly
meet | invite | @friends, @adults, =the whole class | how=politely/in a polite way
    | where=to the party, to dinner, to the wedding | once
meet | meet/!run into | @friends, @adults | how=by chance/accidentally | once | mutual
wait | !wait for | @friends, @adults, @family | how=patiently/with patience, nervously | long
chase | follow | @adults, @children, @friends | where=through the park, into the house, down the stairs
    | how=slowly, quietly/without a sound
move | carry | child/kid, girl/little girl, boy/little boy, baby/infant | who=@adults, @family
    | where=through the park, into the house, down the stairs | how=slowly, carefully/with great care
fight | push/shove | @adults, @children, @friends | how=hard
fight | insult | @adults, @friends | how=loudly
fight | !argue with/!quarrel with | @adults, @children, @friends | how=loudly | long | mutual
depict | photograph/!take a picture of | @adults, @children, @friends
    | how=from a distance/from far away, quickly/in no time
talk | !talk to/!speak with | @adults, @children, @friends | how=quietly/in a low voice, loudly | long
    | mutual
celebrate | celebrate | =a birthday, =the wedding, =the new year | where=at the restaurant/in the restaurant,
    at home, in the park | how=happily/joyfully, loudly | who=@adults, @family, +friends, +children/kids
smile | smile | - | how=happily/joyfully, shyly
gift | give away | book, @clothes, bicycle/bike, @jewelry | how=happily/with a smile | once
gift | borrow | book, @clothes, bicycle/bike, umbrella | how=- | once | where=-

== art
who: @artists, @adults, @children
where: in the studio, in the museum, in the park, at the festival
when: @dayparts, @past, @future, @crowd, @light
how: slowly, carefully/with great care, skillfully/with great skill
depict | paint | @pictures, sunset, flower, horse | where=in the studio, in the park,
    by the river/beside the river | long | who=artist, painter, @adults, @children
depict | draw/sketch | portrait, picture, face, old bridge, dancer
    | where=in the studio, in the park, by the river/beside the river | long
    | who=artist, painter, @adults, @children
depict | photograph/!take pictures of | @views, dancer, bride, statue
    | where=in the studio, in the park, by the river/beside the river
    | how=skillfully/with great skill, from a distance/from far away
    | who=photographer, artist, @adults, @children
shape | carve | statue, wooden horse, spoon, mask | where=in the studio, in the workshop | long
    | who=sculptor, artist, @adults, @children
shape | make | vase, mask, puppet, bowl, clay pot | where=in the studio, in the workshop, at the festival
    | who=sculptor, artist, @adults, @children
show | admire/marvel at | @pictures, statue, mosaic | where=in the museum, in the gallery, at the festival
    | how=quietly/in silence, from a distance/from far away
trade | buy/purchase | @pictures, statue, vase | where=in the gallery, at the festival, at the auction
    | how=- | who=@adults, artist, photographer
trade | sell | @pictures, statue, vase | where=in the gallery, at the festival, at the auction | how=-
    | who=@artists, @adults
rehearse | rehearse/practice | play, dance, scene, speech | where=in the theater, on stage/on the stage
    | how=again and again/repeatedly, loudly | who=actor, dancer, +students, +children/kids,
    singer/vocalist | long
stage | film/shoot | scene, music video, commercial, documentary | where=in the studio, in the park,
    in the desert | how=quickly/in no time, again and again/repeatedly
    | who=photographer, +students, =the director, young woman, young man
watch | watch | play, puppet show, ballet, magic show | where=in the theater, at the festival, in the park
    | how=quietly/in silence, excitedly/with excitement | who=@adults, @children, @family
frame | hang up/put up | @pictures, mirror, poster, photo | where=in the museum, in the gallery,
    in the hallway/in the corridor | how=carefully/with great care

== emergency
who: @rescuers, @police
where: on the street, downtown/in the city center, in the bank, near the station
when: @dayparts, @past, @future, @alarm
how: quickly/in no time, bravely/with great courage
chase | chase/!run after | @crooks | how=quickly/fast, on foot | where=through the city/through the town,
    down the street, across the roofs | who=@police
law | arrest/catch | @crooks, driver/motorist, young man | how=quickly/in no time, without a fight
    | who=@police
law | question/interrogate | @crooks, witness, driver/motorist, neighbor
    | who=police officer/cop, detective | how=for the second time, patiently/with patience
    | where=at the police station, in the bank, near the station
law | !look for/!search for | @crooks, missing child, weapon, @jewelry | how=with a dog, without success
    | long | who=@police
crime | rob | bank, store/shop, jeweler, old woman/elderly woman, tourist | who=@crooks | how=-
    | where=downtown/in the city center, near the station | when=@past
crime | attack | @police, tourist, cashier | who=@crooks | how=suddenly/all of a sudden, brutally
    | when=@past, at night/during the night
crime | steal | purse/handbag, wallet, @jewelry, car/automobile | who=@crooks
    | how=quickly/in no time, without being seen/unnoticed | when=@past, at night/during the night
fire | put out/extinguish | =the fire/the flames, burning car, forest fire
    | who=firefighter/fireman, =+the firefighters, =+the neighbors
    | where=downtown/in the city center, near the station, in the garage
fire | start | =a fire/a blaze | who=teenager/teen, suspect, man/guy, =the lightning
    | where=in the garage, in the barn, near the station | how=accidentally/by accident | when=@past | once
rescue | rescue/save | child/kid, dog, cat, old woman/elderly woman, driver/motorist, =+two boys
    | where=from the fire, from the river, from the burning house | who=@rescuers, @police
rescue | lift | =the injured man, child/kid, barrier, =the fallen tree
    | how=carefully/with great care, quickly/in no time | where=- | who=@rescuers, @police
warn | warn | @adults, +tourists, driver/motorist, =+the neighbors | how=loudly, in time
    | where=on the street, near the station, downtown/in the city center | once | who=@rescuers, @police
damage | burn | - | who=house, barn, car/automobile, =the forest, warehouse
    | how=completely/totally | where=downtown/in the city center, near the station,
    near the village | when=@past, at night/during the night
damage | break/smash | window, lock, bottle, door | who=@crooks, teenager/teen, firefighter/fireman
    | how=quickly/in no time, with a stone/using a stone | where=in the bank, on the street,
    near the station | when=@past, at night/during the night | once
escape | escape/get away | - | who=@crooks, =+the two robbers | how=on foot, quickly/in no time
    | where=through the window, over the wall, across the river | when=@past, @dayparts
"""
