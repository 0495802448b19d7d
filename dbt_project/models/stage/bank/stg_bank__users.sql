{#- Written by `lakehouse scaffold`, its own while unchanged: 5487ec8c64a4a2e9 -#}
{{ cdc_vault.stage(
  source_model='parsed_bank__users',
  derived_columns={
    'user_id': 'id',
  },
  hashed_columns={
    'hk_user': ['id'],
    'hd_user_details': {'is_hashdiff': true, 'columns': ['email', 'name', 'created_at']},
    'hd_status': {'is_hashdiff': true, 'columns': []},
  },
) }}
