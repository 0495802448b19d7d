{{ cdc_vault.stage(
  source_model='parsed_unit__things',
  derived_columns={'place': '!north'},
  hashed_columns={
    'hk_thing': {'columns': ['!own', 'id', 'name'], 'normalize': 'upper_trim', 'blank': 'unknown'},
    'hk_owner': ['owner'],
    'hd_thing': {'is_hashdiff': true, 'columns': ['price', 'name']},
  },
) }}
